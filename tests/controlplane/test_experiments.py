"""Experiments: submitted whole, run interleaved, settled from their finished runs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied

from controlplane.accounts.models import User
from controlplane.errors import ConflictError, QuotaError
from controlplane.experiments import selectors
from controlplane.experiments.models import Experiment
from controlplane.experiments.selectors import spec_of
from controlplane.experiments.services import (
    advance,
    cancel_experiment,
    check_experiment,
    clone_spec,
    decide_again,
    decide_if_finished,
    set_archived,
    set_notes,
    submit_experiment,
)
from controlplane.fleet.services import register_worker
from controlplane.policies.services import create_policy
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Outbox, Run
from controlplane.runs.services import claim, finish, queue_run, retry_run
from controlplane.workloads.services import create_workload
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError
from tests.samples import EXPERIMENT, WORKLOAD

Status = Experiment.Status


def summary(run: Run, ttft_ms: float) -> dict[str, Any]:
    """A summary whose primary metric is ``ttft_ms``, varied a little by repeat."""
    figures = {"ttft_p95_ms": ttft_ms, "ttft_p95_censored_ms": ttft_ms, "tpot_p95_ms": 10.0, "goodput_rps": 5.0}
    units = {"goodput_rps": "1/s"}
    repeat = run.job["repeat"]
    metrics = {
        name: {"value": value * (1 + repeat / 1000), "unit": units.get(name, "ms"), "n": 20}
        for name, value in figures.items()
    }
    return {
        "run": run.pk,
        "attempt": run.attempt,
        "arm": run.job["arm"],
        "repeat": repeat,
        "plan_digest": run.plan_id,
        "policy_digest": run.job["policy"]["policy"],
        "policy": run.job["policy"],
        "target": run.job["target"],
        "level": "cpu_kernels",
        "source": "engine",
        "fingerprint": {},
        "complete": True,
        "offered": 20,
        "measured": 20,
        "outcomes": {"finished": 20},
        "duration_s": 2.0,
        "steps": 50,
        "ties": 0,
        "outputs_digest": "same",
        "metrics": metrics,
        "tiers": {},
        "cold_requests": 0,
        "audit": {"passed": True, "checks": {}, "violations": []},
    }


def play(run: Run, outcome: State = State.SUCCEEDED, ttft_ms: float = 100.0) -> None:
    """Claim a run and end it."""
    assert claim(run_id=run.pk, attempt=run.attempt, worker="w", device=run.pk)
    made = summary(run, ttft_ms) if outcome is State.SUCCEEDED else None
    assert finish(run_id=run.pk, attempt=run.attempt, outcome=outcome, reason="it broke", summary=made)


@pytest.fixture
def experiment(owner: User) -> Experiment:
    return submit_experiment(owner=owner, data=EXPERIMENT)


class TestSubmitExperiment:
    def test_arms_and_interleaved_runs_are_queued_with_their_messages(self, experiment: Experiment) -> None:
        assert [(a.name, a.is_baseline) for a in experiment.arms.all()] == [("baseline", True), ("chunked", False)]
        runs = list(selectors.runs_of(experiment))
        played = [(run.job["repeat"], run.job["arm"]) for run in runs]
        assert played == [(place.repeat, place.arm) for place in spec_of(experiment).runs()]
        assert [repeat for repeat, _ in played] == [0, 0, 1, 1]
        assert Outbox.objects.filter(run__in=runs).count() == 4
        assert {run.plan_id for run in runs} == {experiment.plan_id}
        assert [run.total for run in runs] == [20] * 4
        assert runs[0].title == f"budgets: {runs[0].job['arm']}, repeat 1 of 2"

    def test_each_job_is_complete_but_for_its_paths(self, experiment: Experiment) -> None:
        jobs = [
            parse(RunJob, {**run.job, "run": run.pk, "attempt": 1, "plan_file": "p", "workdir": "w"})
            for run in selectors.runs_of(experiment)
        ]
        assert {job.policy.batch.token_budget for job in jobs} == {8192, 512}
        assert len({job.noise_seed for job in jobs}) == 4, "drift between runs is independent of the arm"

    def test_saved_versions_are_used_by_id_and_remembered(self, owner: User, teammate: User) -> None:
        workload = create_workload(owner=owner, name="chat", spec=WORKLOAD)
        policy = create_policy(owner=owner, name="small", spec={"policy": "vllm_v1", "batch": {"token_budget": 64}})
        data = EXPERIMENT | {
            "workload": {"use": workload.pk},
            "arms": {"baseline": {"policy": "static"}, "small": {"use": policy.pk}},
        }
        made = submit_experiment(owner=teammate, data=data)
        assert made.workload_version == workload
        assert [arm.policy_version for arm in made.arms.all()] == [None, policy]
        assert made.spec["arms"]["small"]["batch"]["token_budget"] == 64
        assert made.plan == workload.plan
        cloned = clone_spec(made)
        assert (cloned["workload"], cloned["arms"]["small"]) == ({"use": workload.pk}, {"use": policy.pk})
        again = submit_experiment(owner=owner, data=cloned, cloned_from=made)
        assert (again.digest, again.cloned_from) == (made.digest, made)

    @pytest.mark.parametrize(
        ("change", "where"),
        [
            ({"workload": {"use": "wkv_none"}}, "workload.use"),
            ({"workload": {"use": "wkv_none", "seed": 3}}, "workload.seed"),
            ({"arms": {"a": {"policy": "static"}, "b": {"use": "plv_none"}}}, "arms.b.use"),
            ({"arms": {"a": {"policy": "statik"}}}, "arms.a.policy"),
            ({"arms": {"a": {"policy": "static", "batch": {"sise": 1}}}}, "arms.a.batch.sise"),
            ({"arms": {"a": {"policy": "static", "cache": {"blocks": 10_000}}}}, "arms.a.cache.blocks"),
            ({"repeats": 0}, "repeats"),
            ({"run_limit_s": 1.5}, "run_limit_s"),  # the last of 20 requests comes after 1.9 s
            ({"workload": {"trace": {"file": "/etc/passwd"}}}, "workload.trace.file"),
            ({"nme": "x"}, "nme"),
            ({"target": {"modelled": {"profile": "a\x00b"}}}, "target.modelled.profile"),
            ({"target": {"torch": {"model": "\ud800"}}}, "target.torch.model"),
        ],
    )
    def test_what_is_wrong_is_named_and_nothing_is_left(self, owner: User, change: dict[str, Any], where: str) -> None:
        with pytest.raises(InputError) as refused:
            submit_experiment(owner=owner, data=EXPERIMENT | change)
        assert where in [problem.where for problem in refused.value.problems]
        assert not Experiment.objects.exists()
        assert not Run.objects.exists()

    @pytest.mark.parametrize("data", [None, "name: x", [], {}])
    def test_anything_that_is_no_experiment_is_refused(self, owner: User, data: object) -> None:
        with pytest.raises(InputError):
            submit_experiment(owner=owner, data=data)

    def test_a_failure_half_way_leaves_nothing(self, owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
        from controlplane.experiments import services

        calls: list[dict[str, Any]] = []

        def failing(**fields: Any) -> Run:
            calls.append(fields)
            if len(calls) == 3:
                raise OSError("power cut")
            return queue_run(**fields)

        monkeypatch.setattr(services, "queue_run", failing)
        with pytest.raises(OSError, match="power cut"):
            submit_experiment(owner=owner, data=EXPERIMENT)
        assert not Experiment.objects.exists()
        assert not Run.objects.exists()
        assert not Outbox.objects.exists()

    def test_the_quota_counts_all_runs(self, owner: User, settings: Any) -> None:
        settings.RUN_QUEUE_LIMIT = 3
        with pytest.raises(QuotaError):
            submit_experiment(owner=owner, data=EXPERIMENT)
        assert not Experiment.objects.exists()

    def test_an_outsider_may_not(self, outsider: AnonymousUser) -> None:
        with pytest.raises(PermissionDenied):
            submit_experiment(owner=outsider, data=EXPERIMENT)  # type: ignore[arg-type]
        with pytest.raises(PermissionDenied):
            check_experiment(user=outsider, data=EXPERIMENT)  # type: ignore[arg-type]


class TestCheckExperiment:
    def test_it_says_what_would_be_run_and_queues_nothing(self, owner: User) -> None:
        found = check_experiment(user=owner, data=EXPERIMENT)
        assert found["plan"]["requests"] == 20
        assert found["baseline"] == "baseline"
        assert found["arms"]["chunked"]["batch"]["size"] is not None
        assert len(found["runs"]) == 4
        assert not Run.objects.exists()

    def test_it_warns_when_nobody_would_take_the_runs(self, owner: User) -> None:
        def warnings() -> list[str]:
            return list(check_experiment(user=owner, data=EXPERIMENT)["warnings"])

        assert warnings() == ["no worker for cpu is online, so its runs wait until one is started"]
        worker = register_worker(name="cpu@a", host="a", pid=1, device_kind="cpu", device="a/cpu:0")
        assert warnings() == []
        worker.draining = True
        worker.save()
        assert "every cpu worker is draining" in warnings()[0]


class TestSettling:
    def status(self, experiment: Experiment) -> str:
        advance(experiment.pk)
        experiment.refresh_from_db()
        return experiment.status

    def test_it_follows_its_runs_to_a_verdict(self, experiment: Experiment) -> None:
        assert self.status(experiment) == Status.QUEUED
        runs = list(selectors.runs_of(experiment))
        for run in runs:
            play(run, ttft_ms=100.0 if run.job["arm"] == "baseline" else 50.0)
            assert self.status(experiment) == (Status.DECIDED if run == runs[-1] else Status.RUNNING)
        assert experiment.verdict is not None
        comparison = experiment.verdict["comparisons"][0]
        assert (comparison["baseline"], comparison["candidate"]) == ("baseline", "chunked")
        assert comparison["pairs"] == 2
        assert experiment.decided_at

    def test_deciding_twice_changes_nothing(self, experiment: Experiment) -> None:
        for run in selectors.runs_of(experiment):
            play(run)
        assert decide_if_finished(experiment.pk) is not None
        assert decide_if_finished(experiment.pk) is None

    def test_not_before_every_run_has_ended(self, experiment: Experiment) -> None:
        play(selectors.runs_of(experiment)[0])
        assert decide_if_finished(experiment.pk) is None

    def test_without_one_success_it_failed_and_says_why(self, experiment: Experiment) -> None:
        for run in selectors.runs_of(experiment):
            play(run, State.FAILED)
        assert self.status(experiment) == Status.FAILED
        assert ", repeat 1 of 2: it broke" in experiment.reason

    def test_a_fault_of_the_verdict_is_shown_and_stops_nobody(
        self, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("division by zero")

        monkeypatch.setattr("controlplane.experiments.deciding.decide", broken)
        for run in selectors.runs_of(experiment):
            play(run)
        assert self.status(experiment) == Status.FAILED
        assert experiment.reason == "no verdict: ZeroDivisionError: division by zero"

    def test_it_is_decided_again_on_request_and_not_before_its_end(
        self, experiment: Experiment, owner: User, teammate: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ConflictError, match="not ended"):
            decide_again(experiment=experiment, user=owner)
        for run in selectors.runs_of(experiment):
            play(run)
        with monkeypatch.context() as patched:
            patched.setattr("controlplane.experiments.deciding.decide", None)
            assert self.status(experiment) == Status.FAILED
        with pytest.raises(PermissionDenied):
            decide_again(experiment=experiment, user=teammate)
        assert decide_again(experiment=experiment, user=owner).status == Status.DECIDED

    def test_a_retry_opens_it_again(self, experiment: Experiment, owner: User) -> None:
        runs = list(selectors.runs_of(experiment))
        for run in runs:
            play(run, State.FAILED)
        assert self.status(experiment) == Status.FAILED
        run = retry_run(run=runs[0], user=owner)
        assert experiment in selectors.unsettled()
        assert self.status(experiment) == Status.RUNNING
        assert (experiment.decided_at, experiment.reason) == (None, "")
        play(run, State.FAILED)
        assert self.status(experiment) == Status.FAILED
        assert experiment not in selectors.unsettled()


class TestCancelExperiment:
    def test_every_open_run_is_cancelled(self, experiment: Experiment, owner: User) -> None:
        runs = list(selectors.runs_of(experiment))
        play(runs[0])
        assert claim(run_id=runs[1].pk, attempt=1, worker="w", device="d")
        made = cancel_experiment(experiment=experiment, user=owner)
        assert made.status == Status.RUNNING, "a worker has still to let go of one run"
        states = list(selectors.runs_of(experiment).values_list("state", flat=True))
        assert states == ["succeeded", "starting", "cancelled", "cancelled"]
        finish(run_id=runs[1].pk, attempt=1, outcome=State.CANCELLED)
        advance(experiment.pk)
        experiment.refresh_from_db()
        assert (experiment.status, experiment.reason) == (Status.CANCELLED, "3 of 4 runs were cancelled")

    def test_not_when_all_have_ended(self, experiment: Experiment, owner: User) -> None:
        cancel_experiment(experiment=experiment, user=owner)
        with pytest.raises(ConflictError, match="already ended"):
            cancel_experiment(experiment=experiment, user=owner)


class TestWhoMay:
    @pytest.mark.parametrize(
        "change",
        [
            lambda e, who: cancel_experiment(experiment=e, user=who),
            lambda e, who: set_notes(experiment=e, user=who, notes="n"),
            lambda e, who: set_archived(experiment=e, user=who, archived=False),
        ],
    )
    def test_owner_and_staff_change_it_and_nobody_else(
        self,
        experiment: Experiment,
        teammate: User,
        staff: User,
        outsider: AnonymousUser,
        change: Callable[[Experiment, Any], Experiment],
    ) -> None:
        for who in (teammate, outsider):
            with pytest.raises(PermissionDenied):
                change(experiment, who)
        change(experiment, staff)

    def test_everyone_signed_in_sees_it(self, experiment: Experiment, teammate: User, outsider: AnonymousUser) -> None:
        play(selectors.runs_of(experiment)[0])
        seen = selectors.visible_to(teammate).get()
        assert (seen.run_count, seen.ended_count, seen.failed_count) == (4, 1, 0)  # type: ignore[attr-defined]
        assert not selectors.visible_to(outsider).exists()

    def test_a_running_one_is_not_archived(self, experiment: Experiment, owner: User) -> None:
        with pytest.raises(ConflictError, match="cancel the experiment first"):
            set_archived(experiment=experiment, user=owner, archived=True)
        cancel_experiment(experiment=experiment, user=owner)
        experiment.refresh_from_db()
        assert set_archived(experiment=experiment, user=owner, archived=True).archived_at
