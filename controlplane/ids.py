"""Public identifiers: short, typed by prefix, and not guessable (about 82 random bits)."""

import secrets

ALPHABET = "23456789abcdefghijkmnpqrstuvwxyz"
LENGTH = 16


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``run_7k2m...``."""
    return f"{prefix}_" + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
