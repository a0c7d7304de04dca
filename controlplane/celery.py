"""The Celery application: only the doorbell of runs. Queues are named by device kind, such as ``headway.cpu``."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("headway")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
