from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "controlplane.runs"
    label = "runs"

    def ready(self) -> None:
        from controlplane.runs import checks  # noqa: F401 - registers them
