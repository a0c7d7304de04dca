"""``python3 -m installer.secrets``: write the secrets of the team deployment once, into ``./secrets``.

Each is a file that only its owner can write; containers get it mounted. Files that exist are left alone.
"""

import os
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "secrets"
READABLE_IN_CONTAINERS = 0o444  # the container's user is another than the one who runs this; the folder is private


def contents() -> dict[str, str]:
    """A fresh set: passwords, and the addresses that contain them."""
    postgres, redis = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    return {
        "secret_key": secrets.token_urlsafe(50),
        "postgres_password": postgres,
        "redis_password": redis,
        "database_url": f"postgres://headway:{postgres}@postgres:5432/headway",
        "redis_url": f"redis://:{redis}@redis:6379",
    }


def write(folder: Path) -> bool:
    """All of them, or none when the folder holds any already; whether it wrote."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if any(folder.iterdir()):
        return False
    for name, content in contents().items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READABLE_IN_CONTAINERS)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
    return True


def main() -> int:
    """Says what it did."""
    wrote = write(FOLDER)
    print(f"{FOLDER}: {'written' if wrote else 'left as it is, it holds secrets already'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
