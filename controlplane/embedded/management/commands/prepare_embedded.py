"""``manage.py prepare_embedded``: what the supervisor needs done by Django before it starts the servers."""

import hashlib
import json
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from controlplane.accounts import services
from controlplane.accounts.models import User

LINK_LIFETIME = timedelta(hours=1)
TOKEN_LIFETIME = timedelta(days=1)
FIRST_USER = "admin"


class Command(BaseCommand):
    """Migrate, collect static files when they changed, and make the first person."""

    help = "Bring database and static files up to date, make the first person, and print a sign-in link as JSON."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--token", action="store_true", help="Also print an API token that works for a day.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._say(step="database")
            call_command("migrate", interactive=False, verbosity=0)
            self._say(step="static files")
            collect_static()
            user = first_user()
        except (DatabaseError, OSError) as error:
            raise CommandError(str(error)) from None
        answer = {"user": user.username, "link": services.issue_sign_in_link(user, lifetime=LINK_LIFETIME)}
        if options["token"]:
            expires_at = timezone.now() + TOKEN_LIFETIME
            answer["token"] = services.create_token(user=user, name="demo", expires_at=expires_at).secret
        self._say(**answer)

    def _say(self, **fields: str) -> None:
        self.stdout.write(json.dumps(fields))
        self.stdout.flush()


def first_user() -> User:
    """The oldest active person with every right; made, without a password, when there is none."""
    known = User.objects.filter(is_superuser=True, is_active=True).order_by("id").first()
    return known or services.create_user(username=FIRST_USER, password=None, staff=True)


def collect_static() -> bool:
    """Collect static files unless none changed since the last time; returns whether it did."""
    root = Path(settings.STATIC_ROOT)
    stamp = root / ".collected"
    digest = _static_digest()
    if stamp.is_file() and stamp.read_text() == digest:
        return False
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(digest)
    return True


def _static_digest() -> str:
    digest = hashlib.sha256()
    for finder in get_finders():
        for path, storage in finder.list([]):
            status = Path(storage.path(path)).stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
