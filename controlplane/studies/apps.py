from django.apps import AppConfig


class StudiesConfig(AppConfig):
    name = "controlplane.studies"
    label = "studies"
