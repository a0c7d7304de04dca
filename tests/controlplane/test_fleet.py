"""Workers, the queue of a target, profiles and calibration."""

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.conf import settings as conf
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.endpoints.services import register as register_endpoint
from controlplane.evidence.services import store_artifact
from controlplane.fleet import selectors
from controlplane.fleet.models import Profile, Worker
from controlplane.fleet.services import (
    WORKER_FORGET_AFTER,
    adopt_profile,
    beat_worker,
    device_kind_of,
    forget_workers,
    mark_stopping,
    register_worker,
    resolve_profile,
    set_draining,
    start_calibration,
    start_probe,
    upload_profile,
)
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import claim
from controlplane.runs.supervision.workdir import clear, clear_abandoned, inside, prepare
from scheduler_core.spec.target import TargetSpec
from scheduler_core.types.errors import InputError

MakeRun = Callable[..., Run]


def register(name: str = "cpu@a", pid: int = 7, kind: str = "cpu") -> Worker:
    return register_worker(name=name, host="a", pid=pid, device_kind=kind, device=f"a/{kind}:0")


def profile(name: str = "p1", model: str = "demo-s") -> dict[str, Any]:
    costs = dict.fromkeys(("base_ns", "prefill_token_ns", "decode_request_ns", "context_token_ns"), 1000.0)
    shares = dict.fromkeys(("residual_share", "drift_share", "held_out_error_share"), 0.02)
    rest = {"device": "cpu", "dtype": "float32", "domain": {}, "steps_measured": 10, "measured_on": {}}
    return {"name": name, "model": model, "cost": costs, **shares, **rest}


class TestWorkers:
    def test_a_restart_takes_its_row_over_and_the_old_process_learns_of_it(self, db: None) -> None:
        register(pid=7)
        register(pid=8)
        assert Worker.objects.get().pid == 8
        assert not beat_worker(name="cpu@a", pid=7)
        assert beat_worker(name="cpu@a", pid=8)

    def test_status_follows_heartbeat_and_flags(self, db: None, staff: User) -> None:
        worker = register()
        assert worker.status() == "ready"
        assert worker.status(timezone.now() + conf.WORKER_DEAD_AFTER + timedelta(seconds=1)) == "dead"
        assert set_draining(worker=worker, user=staff, draining=True).status() == "draining"
        mark_stopping(name="cpu@a", pid=7)
        worker.refresh_from_db()
        assert worker.status() == "stopping"
        assert not selectors.live_workers().exists()

    def test_only_staff_drain(self, db: None, owner: User, outsider: AnonymousUser) -> None:
        worker = register()
        for who in (owner, outsider):
            with pytest.raises(PermissionDenied):
                set_draining(worker=worker, user=who, draining=True)

    def test_a_worker_long_silent_is_forgotten(self, db: None) -> None:
        register()
        assert forget_workers(timezone.now()) == 0
        assert forget_workers(timezone.now() + WORKER_FORGET_AFTER + timedelta(seconds=1)) == 1

    def test_everyone_signed_in_sees_them(self, db: None, teammate: User, outsider: AnonymousUser) -> None:
        register()
        assert selectors.workers_visible_to(teammate).exists()
        assert not selectors.workers_visible_to(outsider).exists()


class TestDeviceKindOf:
    @pytest.mark.parametrize(
        ("target", "kind"),
        [
            ({"torch": {"device": "cpu"}}, "cpu"),
            ({"torch": {"device": "cuda"}}, "cuda"),
            ({"torch": {}}, "cpu"),
            ({"modelled": {}}, "cpu"),
        ],
    )
    def test_as_the_target_says(self, db: None, target: dict[str, Any], kind: str) -> None:
        assert device_kind_of(TargetSpec.model_validate(target)) == kind

    def test_auto_goes_to_cuda_when_a_worker_for_it_is_alive(self, db: None) -> None:
        register("cuda@a", kind="cuda")
        target = TargetSpec.model_validate({"torch": {}})
        assert device_kind_of(target) == "cuda"
        Worker.objects.update(heartbeat_at=timezone.now() - conf.WORKER_DEAD_AFTER * 2)
        assert device_kind_of(target) == "cpu"


class TestProfiles:
    def test_by_name_and_newest(self, owner: User) -> None:
        for name, model in (("old", "demo-s"), ("new", "demo-s"), ("other", "demo-m")):
            upload_profile(owner=owner, data=profile(name, model))
        assert resolve_profile(name="old").name == "old"
        assert resolve_profile(name="auto").name == "other"

    def test_what_is_not_there_is_said_with_what_is(self, owner: User) -> None:
        upload_profile(owner=owner, data=profile("mine"))
        with pytest.raises(InputError, match=r"no profile 'yours'; known here: .*mine.*headway calibrate") as refused:
            resolve_profile(name="yours", where="target.modelled.profile")
        assert refused.value.problems[0].where == "target.modelled.profile"

    @pytest.mark.parametrize("data", [{}, {"name": "x"}, [], profile(name="<b>")])
    def test_what_is_no_profile_is_refused(self, owner: User, data: object) -> None:
        with pytest.raises(InputError):
            upload_profile(owner=owner, data=data)
        assert not Profile.objects.exists()

    def test_an_outsider_may_not_and_sees_none(self, owner: User, outsider: AnonymousUser) -> None:
        with pytest.raises(PermissionDenied):
            upload_profile(owner=outsider, data=profile())  # type: ignore[arg-type]
        upload_profile(owner=owner, data=profile())
        assert not selectors.profiles_visible_to(outsider).exists()


class TestCalibration:
    def played(self, owner: User, folder: Path, content: str | None) -> Run:
        run = start_calibration(owner=owner, name="mine", target={"model": "demo-s", "device": "cpu"}, quick=True)
        claimed = claim(run_id=run.pk, attempt=1, worker="w", device="d")
        assert claimed is not None
        if content is not None:
            path = folder / "profile.json"
            path.write_text(content)
            digest = hashlib.sha256(content.encode()).hexdigest()
            store_artifact(run_id=run.pk, attempt=1, name="profile.json", path=path, sha256=digest)
        return claimed

    def test_its_job_is_for_the_calibration_program(self, owner: User, tmp_path: Path, settings: Any) -> None:
        settings.RUN_CALIBRATE_COMMAND = ["calibrate"]
        folder, command = prepare(self.played(owner, tmp_path, None))
        assert command == ["calibrate", str(folder / "job.json")]
        job = json.loads((folder / "job.json").read_text())
        assert (job["name"], job["quick"], job["target"]["model"]) == ("mine", True, "demo-s")

    def test_its_profile_is_adopted_once_under_the_name_asked_for(self, owner: User, tmp_path: Path) -> None:
        run = self.played(owner, tmp_path, json.dumps(profile("whatever")))
        assert adopt_profile(run=run) == adopt_profile(run=run)
        assert resolve_profile(name="mine").model == "demo-s"

    @pytest.mark.parametrize("content", [None, "{", "{}", "[]"])
    def test_without_a_usable_profile_it_says_so(self, owner: User, tmp_path: Path, content: str | None) -> None:
        run = self.played(owner, tmp_path, content)
        with pytest.raises(InputError):
            adopt_profile(run=run)
        assert not Profile.objects.exists()

    def test_who_may(self, owner: User, outsider: AnonymousUser) -> None:
        with pytest.raises(PermissionDenied):
            start_calibration(owner=outsider, name="x", target={})  # type: ignore[arg-type]
        with pytest.raises(InputError, match="unknown key"):
            start_calibration(owner=owner, name="x", target={"modle": "y"})


class TestProbe:
    SERVER: ClassVar[dict[str, Any]] = {"url": "http://127.0.0.1:9"}

    def test_its_job_holds_how_the_server_is_reached_and_is_nowhere_stored(
        self, owner: User, tmp_path: Path, settings: Any
    ) -> None:
        settings.RUN_CALIBRATE_COMMAND = ["calibrate"]
        register_endpoint(owner=owner, name="mine", url="http://127.0.0.1:9", secret="hush")
        run = start_probe(owner=owner, name="p", server={"endpoint": "mine"}, quick=True)
        claimed = claim(run_id=run.pk, attempt=1, worker="w", device="d")
        assert claimed is not None
        folder, command = prepare(claimed)
        job = json.loads((folder / "job.json").read_text())
        assert command[0] == "calibrate" and job["target"] is None
        assert job["access"]["headers"] == {"authorization": "Bearer hush"}
        assert job["access"]["url"] == "http://127.0.0.1:9" and job["policy"]["policy"] == "as_served"
        assert "hush" not in json.dumps(run.job)

    @pytest.mark.parametrize(
        ("server", "policy", "message"),
        [
            ({"endpoint": "gone"}, None, "there is no endpoint 'gone'"),
            ({"arms": {"a": {"url": "http://127.0.0.1:9"}}}, None, "give exactly one of url, endpoint and launch"),
            (SERVER, {"policy": "vllm_v1", "batch": {"sise": 1}}, "unknown key"),
            (SERVER, {"policy": "nothing"}, "nothing"),
        ],
    )
    def test_what_cannot_be_probed_is_refused(self, owner: User, server: Any, policy: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            start_probe(owner=owner, name="p", server=server, policy=policy)


class TestWorkdir:
    def test_a_folder_left_by_a_killed_worker_is_removed_and_a_held_one_is_not(
        self, make_run: MakeRun, settings: Any
    ) -> None:
        held, left = make_run(State.RUNNING), make_run(State.FAILED)
        for run in (held, left):
            (Path(settings.SCRATCH) / run.pk / "1").mkdir(parents=True)
        assert clear_abandoned() == 1
        assert [path.name for path in Path(settings.SCRATCH).iterdir()] == [held.pk]
        clear(held.pk, 1)
        assert not list(Path(settings.SCRATCH).iterdir())

    @pytest.mark.parametrize("name", ["/etc/passwd", "../other", ".", "missing", "link"])
    def test_only_files_of_the_work_folder_are_taken(self, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        (tmp_path / "other").write_text("x")
        (folder / "link").symlink_to(tmp_path / "other")
        (folder / "good").write_text("x")
        assert inside(folder, "good") == inside(folder, str(folder / "good"))
        with pytest.raises(ValueError, match="not a file of the run's work folder"):
            inside(folder, name)
