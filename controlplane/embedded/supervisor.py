"""The supervisor: starts the embedded stack in order, keeps it running, and stops all of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from controlplane.embedded import guardian, home, logs, programs, screen
from controlplane.embedded.child import Child, Program, kill_group, spawn
from controlplane.embedded.home import Home, StartError

ROOT = Path(__file__).resolve().parent.parent.parent
LOOK_EVERY_S = 0.2
RESTART_DELAY_S = 0.5
ROTATE_EVERY_S = 30.0
PREPARE_LIMIT_S = 300.0


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    port: int = 8000
    demo: bool = False
    exit_after_demo: bool = False


class Supervisor:
    """One embedded stack. `run` returns the exit status; it raises `StartError` for what the person must mend."""

    def __init__(self, options: Options, place: Home, environ: Mapping[str, str]) -> None:
        self.options = options
        self.home = place
        self.environ = dict(environ)
        self.children: list[Child] = []
        self._guardian: subprocess.Popen[bytes] | None = None
        self._demo: subprocess.Popen[bytes] | None = None
        self._demo_status: int | None = None
        self._signals = 0
        self._rotated_at = time.monotonic()

    @property
    def address(self) -> str:
        """Address of the dashboard."""
        return f"http://{programs.LOOPBACK}:{self.options.port}"

    def run(self) -> int:
        """Start, watch until a signal (or the end of the demo), stop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        home.make(self.home)
        lock = home.Lock(self.home)
        lock.take(f"pid {os.getpid()}, {self.address}")
        try:
            self._recover()
            programs.require_port(self.options.port)
            home.keep_secret_key(self.home)
            self._start_all()
            self._watch()
        finally:
            self._stop_all()
            home.clear(self.home)
            lock.release()
        return self._demo_status or 0 if self.options.exit_after_demo else 0

    def stopping(self) -> bool:
        """Whether a signal asked for the end."""
        return self._signals > 0

    def _impatient(self) -> bool:
        return self._signals > 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _recover(self) -> None:
        own_scratch = self.home.scratch.resolve() == (self.home.root / "scratch").resolve()
        ended = home.recover(self.home, own_scratch=own_scratch)
        if ended:
            screen.say(f"An earlier start did not end in order: {ended} process group(s) it left behind were ended.")

    def _start_all(self) -> None:
        screen.say(f"Starting Headway in {self.home.root}")
        self._start_guardian()
        self.environ |= {
            "HEADWAY_HOME": str(self.home.root),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "PYTHONUNBUFFERED": "1",
            "HEADWAY_WEB_PORT": str(self.options.port),
        }
        self.environ.setdefault("HEADWAY_ORIGINS", f"{self.address},http://localhost:{self.options.port}")
        with screen.step("database"):
            prepared = self._prepare()
        if not self.environ.get("REDIS_URL") and not self.environ.get("REDIS_URL_FILE"):
            with screen.step("queue"):
                self._start_queue_server()
        kinds = programs.device_kinds(self.environ.get("HEADWAY_DEVICE_KINDS", ""))
        servers = [programs.web(self.options.port), programs.dispatch(), *map(programs.worker, kinds)]
        children = [self._launch(program) for program in servers]  # together: each takes seconds to import
        for child in children:
            with screen.step(child.name):
                child.wait_ready(self.stopping)
        if not self.stopping():
            self._welcome(prepared)

    def _start_guardian(self) -> None:
        if not self.home.fifo.exists():
            os.mkfifo(self.home.fifo, 0o600)
        argv = [sys.executable, "-m", "controlplane.embedded.guardian", str(self.home.fifo), str(self.home.registry)]
        self._guardian = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._guardian.stdout is not None
        if self._guardian.stdout.readline() != b"ready\n":
            raise StartError("the guardian process could not be started")
        os.environ[guardian.VARIABLE] = self.environ[guardian.VARIABLE] = str(self.home.fifo)

    def _launch(self, program: Program) -> Child:
        child = Child(program, self.environ, ROOT, self.home.logs / f"{program.name}.log")
        self.children.append(child)
        guardian.register_group(child.start())
        return child

    def _start_queue_server(self) -> None:
        for _ in range(3):
            program, url = programs.queue_server(self.home, programs.free_port())
            child = self._launch(program)
            try:
                child.wait_ready(self.stopping)
            except StartError:
                self._discard(child)
                written = child.written()
                if "ddress already in use" in written:
                    continue
                if "append only file" not in written.lower():
                    raise
                aside = programs.set_aside_damaged_queue(self.home, time.strftime("%Y%m%d-%H%M%S"))
                screen.say(f"  The queue's files were damaged and lie in {aside.name}; runs are queued again.")
                continue
            kept = self.home.run / "redis_url"
            home.write_private(kept, url)
            self.environ["REDIS_URL_FILE"] = str(kept)
            return
        raise StartError("valkey could not be started on any port; see its log")

    def _discard(self, child: Child) -> None:
        pid = child.pid
        child.stop(self._impatient)
        self.children.remove(child)
        if pid is not None:
            guardian.unregister_group(pid)

    def _prepare(self) -> dict[str, str]:
        argv = [sys.executable, "manage.py", "prepare_embedded", *(["--token"] if self.options.demo else [])]
        log = self.home.logs / "prepare.log"
        logs.rotate(log)
        handle = logs.open_log(log)
        offset = os.fstat(handle).st_size
        try:
            process = spawn(argv, self.environ, ROOT, stdout=subprocess.PIPE, stderr=handle)
        finally:
            os.close(handle)
        guardian.register_group(process.pid)
        try:
            output, _ = process.communicate(timeout=PREPARE_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise StartError(f"preparing the database took more than {PREPARE_LIMIT_S:.0f} s; see {log}") from None
        finally:
            kill_group(process.pid)
            guardian.unregister_group(process.pid)
        if process.returncode and not self.stopping():
            raise StartError(f"preparing the database failed: {logs.last_lines(log, offset, 1)} (log: {log})")
        answer: dict[str, str] = json.loads(output.splitlines()[-1]) if output.strip() else {}
        return answer

    def _welcome(self, prepared: Mapping[str, str]) -> None:
        screen.say("")
        screen.say(f"Headway runs at {self.address}/")
        screen.say(f"Sign in as {prepared['user']} once, within an hour: {self.address}{prepared['link']}")
        screen.say("Ctrl-C stops everything.")
        screen.say("")
        if self.options.demo:
            environ = {**self.environ, "HEADWAY_URL": self.address, "HEADWAY_TOKEN": prepared["token"]}
            self._demo = spawn([sys.executable, "-m", "headway", "demo"], environ, ROOT, stdout=None, stderr=None)
            guardian.register_group(self._demo.pid)

    def _watch(self) -> None:
        while not self.stopping():
            for child in self.children:
                self._revive(child)
            self._look_after_guardian()
            if self._demo_ended() and self.options.exit_after_demo:
                return
            if time.monotonic() - self._rotated_at > ROTATE_EVERY_S:
                self._rotated_at = time.monotonic()
                for child in self.children:
                    logs.rotate(child.log)
            time.sleep(LOOK_EVERY_S)

    def _revive(self, child: Child) -> None:
        status, dead = child.exit_status(), child.pid
        if status is None or dead is None:
            return
        screen.say(f"  {child.name} ended with status {status}; starting it again")
        guardian.unregister_group(dead)
        child.note_death()
        time.sleep(RESTART_DELAY_S)
        guardian.register_group(child.start())

    def _look_after_guardian(self) -> None:
        if self._guardian is not None and self._guardian.poll() is not None:
            self._start_guardian()  # it reads the groups back from its registry

    def _demo_ended(self) -> bool:
        if self._demo is None or self._demo.poll() is None:
            return False
        self._demo_status = self._demo.returncode
        kill_group(self._demo.pid)
        guardian.unregister_group(self._demo.pid)
        self._demo = None
        if not self.options.exit_after_demo:
            screen.say("")
            screen.say(f"The dashboard stays at {self.address}/ until Ctrl-C.")
        return True

    def _stop_all(self) -> None:
        if self.children or self._demo:
            screen.say("")
            screen.say("Stopping ...")
        began = time.monotonic()
        if self._demo is not None:
            kill_group(self._demo.pid)
            self._demo.wait()
        queue_last = sorted(self.children, key=lambda child: child.name == "valkey")
        for child in queue_last:
            child.stop(self._impatient)
        if self.children:
            screen.say(f"Everything is stopped ({time.monotonic() - began:.1f} s).")
        self.children.clear()
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()  # it ends whatever groups of runs are still registered
            self._guardian.wait()
            self._guardian = None
