from django.apps import AppConfig


class UiConfig(AppConfig):
    name = "controlplane.ui"
    label = "ui"
