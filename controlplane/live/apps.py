from django.apps import AppConfig
from django.http import HttpRequest


class LiveConfig(AppConfig):
    name = "controlplane.live"
    label = "live"

    def ready(self) -> None:
        """Close a person's sockets when that person signs out."""
        from django.contrib.auth.signals import user_logged_out

        from controlplane.live.groups import announce_sign_out

        def signed_out(sender: object, request: HttpRequest, user: object, **_: object) -> None:
            pk, key = getattr(user, "pk", None), request.session.session_key
            if isinstance(pk, int) and key:
                announce_sign_out(pk, key)

        user_logged_out.connect(signed_out, dispatch_uid="live-sign-out", weak=False)
