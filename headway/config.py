"""Which server, and with which token: options win over the environment, the environment over the config file."""

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from scheduler_core.files import whole
from scheduler_core.types.errors import InputError, Problem

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Connection:
    """A server's address without a trailing slash, and an API token ("" for none)."""

    url: str
    token: str


def config_file() -> Path:
    """Where `save` keeps the connection."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "headway" / "config.toml"


def cache_folder() -> Path:
    """Where calibrated profiles of this machine are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headway"


def connection(*, url: str | None = None, token: str | None = None) -> Connection:
    """The connection to use; `InputError` when the config file or the address is unusable."""
    kept = _read(config_file())
    chosen = url or os.environ.get("HEADWAY_URL") or kept.get("url") or DEFAULT_URL
    secret = token or os.environ.get("HEADWAY_TOKEN") or kept.get("token") or ""
    if not chosen.startswith(("http://", "https://")):
        raise InputError([Problem("url", f"{chosen!r} is no address of a server; it begins with http:// or https://")])
    return Connection(chosen.rstrip("/"), secret)


def save(chosen: Connection) -> Path:
    """Keep a connection, readable by this person only; the file."""
    path = config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as partial:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            # A JSON string is a TOML basic string.
            stream.write(f"url = {json.dumps(chosen.url)}\ntoken = {json.dumps(chosen.token)}\n")
    return path


def _read(path: Path) -> dict[str, str]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError([Problem(str(path), f"not a readable config file: {error}")]) from None
    return {key: value for key, value in data.items() if isinstance(value, str)}
