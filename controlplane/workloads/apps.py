from django.apps import AppConfig


class WorkloadsConfig(AppConfig):
    name = "controlplane.workloads"
    label = "workloads"
