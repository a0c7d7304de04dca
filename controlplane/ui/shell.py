"""What every page shows around its content."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from controlplane.ui.health import troubles

THEMES = ("light", "dark")

# Label, icon, URL name, and the first part of the paths that belong to it.
_NAV = (
    ("Overview", "home", "home", ""),
    ("Experiments", "experiment", "experiments", "experiments"),
    ("Studies", "scales", "studies", "studies"),
    ("Runs", "run", "runs", "runs"),
    ("Workloads", "workload", "workloads", "workloads"),
    ("Traces", "trace", "traces", "traces"),
    ("Policies", "policy", "policies", "policies"),
    ("Endpoints", "external", "endpoints", "endpoints"),
    ("Fleet", "fleet", "fleet", "fleet"),
)


def shell(request: HttpRequest) -> dict[str, Any]:
    """Theme for every page; navigation and health for those signed in."""
    theme = request.COOKIES.get("theme", "")
    context: dict[str, Any] = {"theme": theme if theme in THEMES else ""}
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated or request.path_info.startswith(("/admin/", "/api/")):
        return context
    here = request.path_info.strip("/").split("/")[0]
    context["nav"] = [
        {"label": label, "icon": icon, "href": reverse(name), "current": here == part}
        for label, icon, name, part in _NAV
    ]
    context["settings_href"] = reverse("account")
    context["logout_href"] = reverse("logout")
    context["health"] = troubles()
    return context
