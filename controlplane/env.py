"""Typed readers of environment variables that fail loudly; ``NAME_FILE`` names a file holding a secret."""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str | None = None) -> str:
    """Value of ``name``, or of the file named by ``name_FILE``, or ``default``; missing without default is an error."""
    if f"{name}_FILE" in os.environ:
        path = Path(os.environ[f"{name}_FILE"])
        try:
            return path.read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error.strerror}") from None
    value = os.environ.get(name, default)
    if value is None:
        raise ImproperlyConfigured(f"set {name} (or {name}_FILE)")
    return value


def flag(name: str, *, default: bool) -> bool:
    """``1/true/yes/on`` or ``0/false/no/off``."""
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    if value:
        raise ImproperlyConfigured(f"{name}={value!r}: write true or false")
    return default


def number(name: str, default: float) -> float:
    """A number."""
    value = os.environ.get(name)
    try:
        return default if value is None else float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r}: write a number") from None


def words(name: str, default: str = "") -> list[str]:
    """Comma-separated words."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]
