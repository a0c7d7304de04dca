"""``manage.py sign_in_link NAME``: print a link that signs a person in once."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import services
from controlplane.accounts.models import User
from controlplane.embedded.home import last_address


class Command(BaseCommand):
    """Print a one-time sign-in link."""

    help = "Print a link that signs a person in once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--base", help="Address of the dashboard; absent: that of the stack in this home.")
        parser.add_argument("--next", default="", help="Path to show after signing in.")
        parser.add_argument("--minutes", type=int, default=15, help="How long the link works.")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"], is_active=True).first()
        if user is None:
            raise CommandError(f"no active person named {options['username']!r}")
        if not 1 <= options["minutes"] <= 24 * 60:
            raise CommandError("--minutes: give 1 to 1440")
        lifetime = timedelta(minutes=options["minutes"])
        path = services.issue_sign_in_link(user, lifetime=lifetime, then=options["next"])
        base = options["base"] or last_address(settings.HOME) or "http://127.0.0.1:8000"
        self.stdout.write(base.rstrip("/") + path)
