"""``manage.py create_user NAME``: a new person, with a password read from a prompt or standard input."""

import getpass
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import services
from controlplane.accounts.models import User
from scheduler_core.types.errors import InputError


class Command(BaseCommand):
    """Create a person."""

    help = "Create a person. The password is asked for, or read from standard input; never from an argument."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--staff", action="store_true", help="May change everything and use the admin.")
        parser.add_argument("--no-password", action="store_true", help="Only sign-in links and tokens will work.")
        parser.add_argument("--if-missing", action="store_true", help="Succeed when the person exists already.")

    def handle(self, *args: Any, **options: Any) -> None:
        username = options["username"]
        if options["if_missing"] and User.objects.filter(username=username).exists():
            return
        password = None if options["no_password"] else _read_password()
        try:
            services.create_user(username=username, password=password, staff=options["staff"])
        except InputError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"created {username}")


def _read_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise CommandError("the two passwords differ")
    return first
