"""What must hold before an environment is built, each failing with one clear line."""

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path

FREE_BYTES_NEEDED = {"cpu": 3_000_000_000, "cuda": 14_000_000_000}


class InstallError(Exception):
    """Why the environment cannot be built, as one line for the person at the terminal."""


def require_venv() -> None:
    """Some systems package Python without the parts that make environments."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise InstallError(
                f"this Python ({sys.executable}) has no {module} module; on Debian or Ubuntu: "
                f"apt-get install python{version}-venv"
            )


def require_writable(folder: Path) -> None:
    """The environment lies in the checkout."""
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise InstallError(
            f"cannot write in {folder}: {error.strerror}; clone Headway into a folder of your own"
        ) from None


def require_space(folder: Path, flavour: str) -> None:
    """Room for the download, the unpacked environment, and some to work in."""
    free, needed = shutil.disk_usage(folder).free, FREE_BYTES_NEEDED[flavour]
    if free < needed:
        raise InstallError(
            f"disk full: {free / 1e9:.1f} GB free for {folder}, the {flavour} environment needs {needed / 1e9:.0f} GB"
        )


def require_port(port: int) -> None:
    """Asked before a long installation, so that nobody waits minutes to learn that the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InstallError(
                f"port {port} cannot be used ({error.strerror}); choose another: PORT={port + 1}"
            ) from None
