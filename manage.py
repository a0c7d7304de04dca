#!/usr/bin/env python
"""Django's entry point; ``manage.py up`` starts the embedded stack instead."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    if sys.argv[1:2] == ["up"]:
        from controlplane.embedded.up import main

        sys.exit(main(sys.argv[2:]))
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"headway: {error}")
    except (OperationalError, ProgrammingError) as error:
        sys.exit(
            f"headway: the database cannot answer ({error}); is it up, and were its tables made: `manage.py migrate`?"
        )
