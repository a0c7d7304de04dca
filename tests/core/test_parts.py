"""The small pieces: lifecycle table, cursors, waiting queue, cost, noise, manifests, import shape."""

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler_core.kv.digest import ChainKeys
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import check_against, resolve
from scheduler_core.request.lifecycle import TRANSITIONS, Event, State, next_state
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.progress import Progress
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.waiting import WaitingQueue
from scheduler_core.sim.cost import StepCost, StepParts
from scheduler_core.spec.profiles import reference_profiles
from scheduler_core.spec.target import HostTime
from scheduler_core.testing.builders import Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import CallerError, ExecutorError, InputError, LawError
from scheduler_core.types.plan import GrantResult, StepResult
from scheduler_core.types.records import Finished
from scheduler_core.types.shape import StepShape, causal_pairs

ROOT = Path(__file__).parents[2] / "scheduler_core"
PURE = ("types", "request", "kv", "sched", "policies", "drive", "sim")


def live(index: Any = 0, prompt: Any = 10, limit: Any = 5, **changes: Any) -> Any:
    spec = RequestSpec(id=index, arrival_ns=0, prompt_tokens=prompt, output_limit=limit, **changes)
    return LiveRequest(spec, seq=index, model_length=1000)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_illegal_transitions_raise_and_change_nothing(state: Any, event: Any) -> None:
    item = live()
    item.state = state
    if (state, event) in TRANSITIONS:
        item.apply(event)
        assert item.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(CallerError, match=f"{event.name} is illegal for a {state.name} request"):
            item.apply(event)
        assert item.state is state


def test_nothing_follows_the_end() -> None:
    for event in Event:
        with pytest.raises(CallerError, match="legal: nothing"):
            next_state(State.ENDED, event)


def test_cursors_refuse_what_is_not_owed() -> None:
    progress = Progress(10)
    for length in (0, -1, 11):
        with pytest.raises(CallerError):
            progress.grant(length)
    assert progress.grant(10) is True
    with pytest.raises(CallerError):
        progress.adopt(3)
    assert (progress.known, progress.promised, progress.granted, progress.debt) == (10, 1, 10, 1)


def test_waiting_queue_restores_what_was_taken_to_its_place() -> None:
    queue, items = WaitingQueue(), [live(index) for index in range(4)]
    for item in items:
        queue.push(item, ())
    entry = queue.take()
    queue.push_front(live(9))
    queue.restore(entry)
    queue.remove(items[2])
    assert [item.id for item in queue] == [9, 0, 1, 3]


@pytest.mark.parametrize("block_size", [4, 8, 16, 24])
@given(a=st.lists(st.integers(0, 2), max_size=6), b=st.lists(st.integers(0, 2), max_size=6), tail=st.integers(1, 40))
def test_keys_are_equal_exactly_where_all_tokens_are(block_size: Any, a: Any, b: Any, tail: Any) -> None:
    """Blocks of the plan hold 8 tokens. The model spells tokens out: shared ones by id and place, others by seed."""

    def spelled(ids: Any, seed: Any) -> Any:
        shared = [(block, place) for block in ids for place in range(8)]
        return shared + [(seed, "private", place) for place in range(len(shared), len(shared) + tail)]

    chain = ChainKeys(block_size)
    both = []
    for index, ids in enumerate((a, b)):
        item = live(index, prompt=8 * len(ids) + tail, prefix_blocks=tuple(ids), prefix_block_size=8, seed=index)
        tokens = spelled(ids, index)
        both.append((tokens, chain.extend(item, len(tokens) // block_size)))
    (tokens_a, keys_a), (tokens_b, keys_b) = both
    for number, (x, y) in enumerate(zip(keys_a, keys_b, strict=False)):
        end = (number + 1) * block_size
        assert (x == y) == (tokens_a[:end] == tokens_b[:end])


def test_step_cost_is_the_affine_sum() -> None:
    """1 ms + 0.01 x 100 + 0.1 x 3 + 0.001 x 50 = 2.35 ms."""
    cost = StepCost(profile(prefill_token_ms=0.01, decode_request_ms=0.1, context_token_ms=0.001))
    assert cost.step_ns(StepShape(100, 3, 50, 0), 0) == 2_350_000


def test_step_cost_follows_the_knots_and_adds_the_host() -> None:
    """Knots 0 ns at 1, 300 at 4, 400 at 8 tokens: 2 tokens are a third of the way up (100), 6 are half way on (350),
    and at 12 the last slope of 25 ns a token has added 100 more (500); no token is level with the first.
    Host: 50 + 7 x (3 decoding + 2 joining) + 20 x 2 joining = 125; device 1,000,000 + 500 at 9 + 3 = 12 tokens.
    """
    plain = profile()
    knotty = plain.model_copy(
        update={
            "cost": plain.cost.model_copy(update={"batch_knots": ((1, 0), (4, 300), (8, 400))}),
            "host": HostTime(base_ns=50, request_ns=7, joined_ns=20),
        }
    )
    cost = StepCost(knotty)
    times = [cost.step_ns(StepShape(tokens, 0, 0, 0), 0) - 1_000_050 for tokens in (0, 1, 2, 6, 8, 12)]
    assert times == [0, 0, 100, 350, 400, 500]
    shape = StepShape(9, 3, 0, 0, joined=2)
    assert cost.parts(shape, 0) == StepParts(125, 0, 1_000_500, 0, 0)
    assert cost.step_ns(shape, 0) == 1_000_625


def test_a_step_after_idle_time_pays_for_cold_caches() -> None:
    """300 ns after up to 1,000 ns of idling, 700 ns from 3,000 on, half way between in between; none without idling."""
    cost = StepCost(profile().model_copy(update={"host": HostTime(wake_knots=((1_000, 300), (3_000, 700)))}))
    assert [cost.wake_ns(idle) for idle in (0, 500, 1_000, 2_000, 3_000, 90_000)] == [0, 300, 300, 500, 700, 700]


def test_knots_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValidationError, match="do not rise"):
        HostTime(wake_knots=((5, 1), (5, 2)))


def test_causal_pairs_by_counting() -> None:
    for start in range(4):
        for length in range(4):
            assert causal_pairs(start, length) == sum(position + 1 for position in range(start, start + length))


def test_noise_depends_on_seed_and_step_only_and_has_the_stated_size() -> None:
    """2,000 residuals of 5 %: their standard deviation lies within 4.6 to 5.4 %, their mean within 0.4 % of 1."""
    cost = StepCost(profile(residual_share=0.05), noise_seed=1)
    steps = [cost.step_ns(StepShape(0, 1, 1, 0), step) / 1e6 for step in range(2000)]
    assert steps[7] == StepCost(profile(residual_share=0.05), noise_seed=1).step_ns(StepShape(0, 1, 1, 0), 7) / 1e6
    mean = sum(steps) / len(steps)
    spread = (sum((x - mean) ** 2 for x in steps) / len(steps)) ** 0.5
    assert abs(mean - 1) < 0.004
    assert 0.046 < spread < 0.054


def test_drift_is_common_to_a_run_and_differs_between_runs() -> None:
    shape = StepShape(0, 1, 1, 0)
    runs = [StepCost(profile(drift_share=0.05), noise_seed=seed) for seed in range(20)]
    assert all(run.step_ns(shape, 0) == run.step_ns(shape, 99) for run in runs)
    assert len({run.step_ns(shape, 0) for run in runs}) == 20


def test_an_impossible_result_changes_nothing() -> None:
    stepper = Stepper(policy_spec("vllm_v1", batch__token_budget=6), Capacity(100, 100))
    with pytest.raises(ExecutorError, match="none is in flight"):
        stepper.instance.complete(StepResult(0, (), (), 0, 1))
    stepper.submit(0, 10)
    planned = stepper.plan()
    for result in (
        StepResult(5, (GrantResult(None),), (), 0, 1),
        StepResult(planned.plan.id, (), (), 0, 1),
        StepResult(planned.plan.id, (GrantResult(7),), (), 0, 1),
        StepResult(planned.plan.id, (GrantResult(None, last=True),), (), 0, 1),
    ):
        with pytest.raises(ExecutorError):
            stepper.instance.complete(result)
        stepper.instance.check()
    stepper.complete(planned)
    with pytest.raises(ExecutorError):
        stepper.complete(planned)
    assert stepper.step() == {0: 4}


def test_misuse_is_refused() -> None:
    stepper = Stepper(policy_spec("vllm_v1"), Capacity(100, 100))
    stepper.submit(0, 10, limit=5)
    with pytest.raises(CallerError, match="live already"):
        stepper.submit(0, 10, limit=5)
    with pytest.raises(CallerError, match="QUEUED, not RUNNING"):
        stepper.instance.preempt(0, now_ns=0)
    stepper.plan()
    with pytest.raises(CallerError, match="in flight already"):
        stepper.plan()


def test_liveness_names_the_state() -> None:
    """A policy that never lets anybody in is found out at the first step, not by waiting."""

    class NeverAdmits:
        def decide(self, reserve_blocks: Any, room_blocks: Any, view: Any) -> Any:
            from scheduler_core.sched.decisions import Deferral
            from scheduler_core.types.reasons import Defer

            return Deferral(Defer.NO_BLOCKS, 1, 0)

    stepper = Stepper(policy_spec("vllm_v1"), Capacity(100, 100))
    object.__setattr__(stepper.instance.policy, "admission", NeverAdmits())
    stepper.submit(3, 10, limit=5)
    with pytest.raises(LawError, match="1 wait, 0 run and 0 are stopped; head 3"):
        stepper.try_plan()


def test_declared_limits_not_true_lengths_end_a_request() -> None:
    """The executor would go on to 50 tokens; the declared limit is 4, and a model length of 12 leaves 2 after 10."""
    for limit, length, tokens in ((4, 1000, 4), (50, 12, 2)):
        played = play(policy_spec("vllm_v1"), [request(0, 10, 50, output_limit=limit)], capacity=Capacity(50, length))
        (end,) = played.sink.of(Finished)
        assert (end.output_tokens, end.reason) == (tokens, "length")


# --- manifests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(manifests()))
def test_every_manifest_resolves_and_its_settings_exist(name: Any) -> None:
    manifest = manifests()[name]
    full = resolve(policy_spec(name))
    assert full == manifest.defaults == resolve(full)
    for setting in manifest.settable:
        section, _, key = setting.partition(".")
        assert key in type(getattr(full, section)).model_fields
    played = play(full, [request(index, 20, 4) for index in range(5)])
    assert played.report.outcomes == {"finished": 5}


def test_overrides_are_kept() -> None:
    assert resolve(policy_spec("vllm_v1", batch__token_budget=77)).batch.token_budget == 77


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (policy_spec("vlm_v1"), "policy: no policy is called 'vlm_v1'; did you mean 'vllm_v1'?"),
        (policy_spec("vllm_v1", batch__max_wait_ms=5), "batch.max_wait_ms: does not apply to policy 'vllm_v1'"),
        (policy_spec("static", order__by="priority"), "order.by: does not apply to policy 'static' (always 'arrival')"),
    ],
)
def test_what_does_not_apply_is_named(spec: Any, message: Any) -> None:
    with pytest.raises(InputError) as caught:
        resolve(spec)
    assert str(caught.value).startswith(message)


def test_a_pool_above_the_target_is_refused() -> None:
    with pytest.raises(InputError, match=r"cache\.blocks: 600 is more than the 512 of the target"):
        check_against(policy_spec("vllm_v1", cache__blocks=600), model_length=100, kv_blocks=512)


# --- shape of the code ----------------------------------------------------------------------------------------------

FORBIDDEN = {"time", "random", "threading", "asyncio", "torch", "django", "secrets", "datetime", "multiprocessing"}


def imports_of(path: Any) -> Any:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("package", PURE)
def test_the_core_reads_no_clock_and_starts_nothing(package: Any) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert not {name.split(".")[0] for name in imports_of(path)} & FORBIDDEN, path


def test_descriptions_of_policies_need_no_planner() -> None:
    names = {name for name in imports_of(ROOT / "policies" / "manifests.py") if name.startswith("scheduler_core")}
    assert "scheduler_core.spec.policy" in names
    assert all(name.startswith(("scheduler_core.spec.", "scheduler_core.types.")) for name in names)
    assert not list(imports_of(ROOT / "policies" / "__init__.py"))


def test_schedulers_cannot_name_the_true_output_length() -> None:
    """The wall: below the driver no code mentions the field that holds it, but for the evidence of what was emitted."""
    for package in ("request", "kv", "sched", "policies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "output_tokens":
                    raise AssertionError(f"{path}:{node.lineno} reads a true output length")


def test_bundled_profiles_say_that_they_were_not_measured_here() -> None:
    for bundled in reference_profiles():
        assert bundled.steps_measured == 0
        assert "not measured" in str(bundled.measured_on["note"])
        cost = StepCost(bundled)
        assert cost.step_ns(StepShape(0, 8, 800, 0), 0) < cost.step_ns(StepShape(64, 8, 800, 2080), 0)
