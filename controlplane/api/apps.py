from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "controlplane.api"
    label = "api"

    def ready(self) -> None:
        from controlplane.api import authentication, schema  # noqa: F401  (registers their OpenAPI extensions)
