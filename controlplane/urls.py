"""URL map: admin, REST, live updates, and the pages."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("controlplane.api.urls")),
    path("", include("controlplane.accounts.urls")),
    path("", include("controlplane.live.urls")),
    path("", include("controlplane.ui.urls")),
]
