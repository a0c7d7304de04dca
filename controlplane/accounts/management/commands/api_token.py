"""``manage.py api_token NAME``: make an API token and print it, once."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from controlplane.accounts import services
from controlplane.accounts.models import User
from scheduler_core.types.errors import InputError


class Command(BaseCommand):
    """Print a new API token."""

    help = "Make an API token for a person and print it; it cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--name", default="command line", help="Where the token is used.")
        parser.add_argument("--read-only", action="store_true", help="May look, may not change anything.")
        parser.add_argument("--days", type=int, default=90, help="How long the token works.")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"], is_active=True).first()
        if user is None:
            raise CommandError(f"no active person named {options['username']!r}")
        if not 1 <= options["days"] <= 366:
            raise CommandError("--days: give 1 to 366")
        try:
            issued = services.create_token(
                user=user,
                name=options["name"],
                read_only=options["read_only"],
                expires_at=timezone.now() + timedelta(days=options["days"]),
            )
        except InputError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(issued.secret)
