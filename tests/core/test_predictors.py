"""Predictions of output lengths, their errors, and the wall around the true ones."""

import itertools
import math
import statistics
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.drive.driver import Driver
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.policies.predictors import (
    Announced,
    Blurred,
    DeclaredLimit,
    MeanByClass,
    MeanOfEnded,
    QuantileOfEnded,
)
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.registry import manifests
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.testing.builders import ListSink, play, policy_spec, profile, request
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.records import Admitted, Step


def live(index: int = 0, emitted: int = 0, limit: int = 1000, **changes: Any) -> LiveRequest:
    spec = RequestSpec(id=index, arrival_ns=0, prompt_tokens=10, output_limit=limit, **changes)
    item = LiveRequest(spec, seq=index, model_length=10_000)
    item.known += emitted
    return item


def taught(predictor: Any, *lengths: int, **changes: Any) -> Any:
    for length in lengths:
        predictor.finished(live(emitted=length, **changes))
    return predictor


def test_each_predictor_by_hand() -> None:
    """Ended answers of 10, 20, 60: mean 30; the 50 % quantile 20; of those longer than 25 only 60."""
    assert DeclaredLimit().expected(live(limit=77)) == 77
    assert taught(MeanOfEnded(), 10, 20, 60).expected(live()) == 30
    assert taught(QuantileOfEnded(0.5), 10, 20, 60).expected(live()) == 20
    assert taught(QuantileOfEnded(0.5), 10, 20, 60).expected(live(emitted=25)) == 60
    assert Announced().expected(live(foreseen=42)) == 42
    assert Announced().expected(live(limit=88)) == 88
    by_class = taught(taught(MeanByClass("tenant"), 10, 20, tenant="a"), 100, tenant="b")
    assert [by_class.expected(live(tenant=name)) for name in "abc"] == [15, 100, 1000]


@pytest.mark.parametrize("predictor", [MeanOfEnded(), QuantileOfEnded(0.5), MeanByClass("tier"), Announced()])
def test_nothing_is_known_before_an_answer_has_ended(predictor: Any) -> None:
    assert predictor.expected(live(limit=31)) == 31


@given(
    st.lists(st.integers(1, 200), max_size=60),
    st.sampled_from([lambda: MeanOfEnded(8), lambda: QuantileOfEnded(0.7, 8), lambda: MeanByClass("prompt", 8)]),
    st.integers(0, 150),
    st.integers(1, 160),
)
def test_a_prediction_is_possible_and_goes_by_the_last_answers(
    lengths: Any, make: Any, emitted: Any, above: Any
) -> None:
    predictor, fresh = taught(make(), *lengths), taught(make(), *lengths[-8:])
    item = live(emitted=emitted, limit=emitted + above)
    assert emitted < predictor.expected(item) <= emitted + above
    assert predictor.expected(item) == fresh.expected(item)


def test_errors_have_the_stated_size_and_belong_to_the_request() -> None:
    """2,000 factors with sigma 0.5: the logarithm's deviation lies within 0.5 +- 0.03, its median near the bias."""
    blurry = Blurred(Announced(), sigma=0.5, bias=2.0, seed=3)
    seen = [blurry.expected(live(index, limit=10**9, foreseen=100_000)) for index in range(2000)]
    logs = [math.log(value / 200_000) for value in seen]
    assert abs(statistics.stdev(logs) - 0.5) < 0.03
    assert abs(statistics.median(logs)) < 0.05
    assert seen == [blurry.expected(live(index, limit=10**9, foreseen=100_000)) for index in range(2000)]
    other = Blurred(Announced(), sigma=0.5, bias=2.0, seed=4)
    assert seen[:9] != [other.expected(live(index, limit=10**9, foreseen=100_000)) for index in range(9)]


def test_what_is_announced_has_its_error_already() -> None:
    planned = [request(index, 10, 50, output_limit=400) for index in range(200)]
    assert {Foresight().of(item) for item in planned} == {50}
    blurry = [Foresight(sigma=1.0, seed=1).of(item) for item in planned]
    assert len(set(blurry)) > 50
    assert all(1 <= value <= 400 for value in blurry)
    assert foresight_of(policy_spec("vllm_v1", predict__by="mean").predict) is None
    spec = policy_spec("vllm_v1", predict__by="perfect", predict__sigma=0.3)
    assert foresight_of(spec.predict) == Foresight(0.3, 1.0, 0)


def test_better_predictions_order_better() -> None:
    """One slot, declared limits all 200: perfect goes by 5, 50, 150; without a prediction by arrival."""
    requests = [request(i, 10, n, at_ms=i * 0.1, output_limit=200) for i, n in enumerate((20, 150, 50, 5))]
    orders = {}
    for by in ("none", "perfect"):
        spec = policy_spec("vllm_v1", order__by="shortest", order__length="predicted", batch__size=1, predict__by=by)
        played = play(spec, requests, foresight=foresight_of(spec.predict))
        orders[by] = [record.request for record in played.sink.of(Admitted)]
    assert orders == {"none": [0, 1, 2, 3], "perfect": [0, 3, 2, 1]}


def test_room_for_the_prediction_lies_between_prompt_and_limit() -> None:
    """Pool of 20 blocks of 4; prompts of 8 (2 blocks), 8 answers (16 tokens: 4 blocks), limits 56 (16 blocks).

    How many run at once: by first chunk and known tokens many, by perfect prediction 5, by limit 1.
    """
    requests = [request(index, 8, 8, output_limit=56) for index in range(12)]
    most = {}
    for admit in ("first_chunk", "known", "predicted", "limit"):
        spec = policy_spec(
            "vllm_v1", cache__admit=admit, cache__block_size=4, cache__prefix="none", predict__by="perfect"
        )
        played = play(spec, requests, capacity=Capacity(20, 100), foresight=foresight_of(spec.predict))
        most[admit] = max(step.running for step in played.sink.of(Step))
        assert played.report.outcomes == {"finished": 12}
    assert most["limit"] == 1
    assert most["limit"] < most["predicted"] <= most["known"] <= most["first_chunk"]


# --- the wall -------------------------------------------------------------------------------------------------------

SECRET = 7_654_321
"""A true output length that nothing else in a run can equal by chance."""

ATOMS = (int, float, complex, str, bytes, bool, type(None), type, ModuleType)


def reachable(roots: Any) -> Iterator[Any]:
    """Every object that can be reached through attributes, items, closures, defaults and bound objects."""
    stack, seen = list(roots), set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, ATOMS):
            continue
        if isinstance(item, MethodType):
            stack += [item.__self__, item.__func__]
        elif isinstance(item, FunctionType):
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
            stack += list(item.__defaults__ or ())
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset) or type(item).__name__ in ("deque", "OrderedDict"):
            stack += list(item)
        for name in {*getattr(item, "__dict__", {}), *(n for c in type(item).__mro__ for n in _slots(c))}:
            stack.append(getattr(item, name, None))


def _slots(cls: type) -> Any:
    found = cls.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else found


def policies() -> list[Any]:
    specs = [policy_spec(name) for name in sorted(manifests())]
    for by in ("shortest", "deadline", "response_ratio", "levels"):
        specs.append(policy_spec("vllm_v1", order__by=by, order__length="predicted", predict__by="quantile"))
    specs.append(policy_spec("vllm_v1", cache__admit="predicted", predict__by="class", predict__sigma=0.5))
    return specs


@pytest.mark.parametrize("spec", policies(), ids=lambda spec: f"{spec.policy}-{spec.order.by}")
def test_no_attribute_path_leads_from_a_policy_to_a_true_output_length(spec: Any) -> None:
    """In the middle of a run everything that any part of the policy holds, or is handed, is searched."""
    requests = [request(i, 20, SECRET, at_ms=i, output_limit=300, tenant=f"t{i % 2}") for i in range(12)]
    instance = build_instance(spec, Capacity(60, 1000))
    turns = itertools.count()
    found: list[str] = []

    def look() -> bool:
        if next(turns) in (3, 20, 60):
            handed = [instance, instance.policy, instance._builder._view, *instance._state.requests.values()]
            for item in reachable(handed):
                if isinstance(item, PlannedRequest) or (type(item) is int and item == SECRET):
                    found.append(repr(item))
        return False

    executor = SimulatedExecutor(profile=profile())
    Driver(instance=instance, requests=requests, executor=executor, sink=ListSink(), stop=look).run()
    assert next(turns) > 61
    assert found == []


def test_the_search_would_find_it() -> None:
    """The wall's test can fail: with a study of perfect knowledge the announced length is there to be found."""
    item = live(foreseen=SECRET)
    assert any(type(found) is int and found == SECRET for found in reachable([item]))
    hidden = request(0, 10, SECRET)
    assert any(isinstance(found, PlannedRequest) for found in reachable([lambda: hidden]))


@settings(max_examples=60)
@given(
    spec=st.sampled_from(policies()),
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20)), min_size=2),
    blocks=st.integers(30, 80),
)
def test_plans_are_the_same_until_an_observed_answer_differs(spec: Any, rows: Any, blocks: Any) -> None:
    """Two runs of one traffic whose hidden lengths differ: no plan differs before an answer has ended differently."""
    runs = []
    for hidden in (2, 3):
        at, requests = 0, []
        for index, row in enumerate(rows):
            at += row[0]
            requests.append(request(index, row[1], row[hidden], at_ms=at, output_limit=20))
        played = play(spec, requests, capacity=Capacity(blocks, 400))
        runs.append([(step.planned_ns, step.grants) for step in played.sink.of(Step)])
    shortest = {index: min(row[2], row[3]) for index, row in enumerate(rows) if row[2] != row[3]}
    emitted: dict[int, int] = {}
    for (at_ns, grants), other in zip(*runs, strict=False):
        assert (at_ns, grants) == other
        for row in grants:
            emitted[row[0]] = emitted.get(row[0], 0) + row[5]
        if any(emitted.get(index, 0) >= length for index, length in shortest.items()):
            break
