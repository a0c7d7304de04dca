"""The control plane: Django, Celery and Channels around the core. Never loads torch."""
