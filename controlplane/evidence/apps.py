from django.apps import AppConfig


class EvidenceConfig(AppConfig):
    name = "controlplane.evidence"
    label = "evidence"
