"""``manage.py dispatch``."""
