"""Secrets that are shown once and kept only as keyed digests.

The digest is HMAC-SHA256 under a key derived from ``SECRET_KEY`` (the pepper): a leaked database alone lets nobody in
and cannot be searched offline.
"""

import secrets

from django.utils.crypto import salted_hmac

TOKEN_MARK = "hw"
PREFIX_LENGTH = 10
_ALPHABET = "23456789abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"


def keyed_digest(purpose: str, secret: str) -> str:
    """Hex HMAC-SHA256 of ``secret``; another ``purpose`` gives another digest of the same secret."""
    return salted_hmac(f"controlplane.accounts.{purpose}", secret, algorithm="sha256").hexdigest()


def random_text(length: int) -> str:
    """``length`` random characters of an alphabet without look-alikes, about 5.8 bits each."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def split_token(token: str) -> tuple[str, str] | None:
    """(lookup prefix, whole token) of ``hw_PREFIX_SECRET``, or None when it is not of that form."""
    parts = token.split("_")
    if len(parts) != 3 or parts[0] != TOKEN_MARK or len(parts[1]) != PREFIX_LENGTH or not token.isascii():
        return None
    return parts[1], token
