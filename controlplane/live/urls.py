"""URLs of polling, back-fill and series."""

from django.urls import path

from controlplane.live import views

urlpatterns = [
    path("live/runs/<slug:run_id>/", views.run, name="live-run"),
    path("live/runs/<slug:run_id>/series/", views.run_series, name="live-run-series"),
    path("live/experiments/<slug:experiment_id>/", views.experiment, name="live-experiment"),
]
