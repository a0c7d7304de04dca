"""Secrets at rest: encrypted under a key derived from ``SECRET_KEY``, opened only where a request is made."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from scheduler_core.types.errors import InputError, Problem

_PURPOSE = b"headway endpoint secrets"


def seal(secret: str) -> str:
    """``secret`` as text for the database; empty stays empty."""
    return _box().encrypt(secret.encode()).decode("ascii") if secret else ""


def unseal(sealed: str) -> str:
    """The secret again; `InputError` when it was sealed under another ``SECRET_KEY``."""
    if not sealed:
        return ""
    try:
        return _box().decrypt(sealed.encode("ascii")).decode()
    except InvalidToken:
        message = "cannot be opened: SECRET_KEY has changed since it was stored; enter it again"
        raise InputError([Problem("secret", message)]) from None


def _box() -> Fernet:
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(settings.SECRET_KEY.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
