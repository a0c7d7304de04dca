"""Samples of one prompt on kernels: blocks shared and copied on write, and each the tokens that it has alone."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.hostpool import CpuHostPool, check_copies
from gpu_runner.engine.settings import Sampling
from scheduler_core.testing.builders import policy_spec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.plan import BlockCopy, StepPlan
from scheduler_core.types.records import Admitted, Finished, Step
from scheduler_core.types.time import NS_PER_MS
from scheduler_core.workload.samples import with_samples
from tests.engine.conftest import settings_for
from tests.engine.families import FAMILIES
from tests.engine.playing import Chaos, alone, request
from tests.engine.test_real_policies import BLOCKS, HOST_BLOCKS, SIZE, drive, watched

DRAWN = Sampling(temperature=1.0, top_k=40, top_p=0.95)


def engine(*, overlap: Overlap = Overlap.NONE, model: str = "tiny", attention: str = "auto") -> TorchExecutor:
    """Tokens are drawn, so that samples of one prompt differ."""
    sizes = {"kv_blocks": BLOCKS, "host_blocks": HOST_BLOCKS, "block_size": SIZE, "prefix_block_size": SIZE}
    made = TorchExecutor(settings_for(model, **sizes, overlap=overlap, sampling=DRAWN, attention=attention))
    made.load()
    made.start()
    return made


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return engine()


def groups(prompts: list[tuple[int, int]], samples: int) -> list[PlannedRequest]:
    """``samples`` of each (prompt, output), with indices that no other test uses."""
    rows = [replace(request(prompt, output, seed=place), index=place) for place, (prompt, output) in enumerate(prompts)]
    shift = 1_000 * (1 + request(1, 1).index)
    return [replace(r, index=r.index + shift, group=(r.group or 0) + shift) for r in with_samples(rows, samples)]


def check(executor: TorchExecutor, requests: list[PlannedRequest], seed: int) -> Chaos:
    """Serve ``requests`` by random plans; each has the tokens that it has alone."""
    expected = [alone(executor, planned) for planned in requests]
    player = Chaos(executor, random.Random(seed), cancel_share=0.01)
    for planned, mine, theirs in zip(requests, player.serve(requests), expected, strict=True):
        if len(mine.tokens) < len(theirs.tokens):  # cancelled: what it had is the beginning of the same answer
            theirs = theirs.begin(len(mine.tokens))
        assert mine.agrees(theirs), (planned, mine, theirs)
    return player


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=2),
    samples=st.integers(2, 4),
    seed=st.integers(0, 10**6),
)
def test_no_plan_changes_a_token_of_a_sample(
    prompts: list[tuple[int, int]], samples: int, seed: int, executor: TorchExecutor
) -> None:
    check(executor, groups(prompts, samples), seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_of_any_family(family: str, folders: Callable[[str], object]) -> None:
    made = engine(model=str(folders(family)))
    players = [check(made, groups([(37, 6), (18, 6)], 3), seed) for seed in range(2)]
    assert sum(player.copies_on_write for player in players) > 0


def test_samples_of_a_prompt_differ_and_the_first_is_the_request_itself(executor: TorchExecutor) -> None:
    """Equal prompts, seeds of their own; without samples the first one's tokens are the same."""
    first, second, third = groups([(20, 12)], 3)
    tokens = [alone(executor, planned).tokens for planned in (first, second, third)]
    assert len({tuple(one) for one in tokens}) == 3
    assert alone(executor, replace(first, group=None)).tokens == tokens[0]


SPECS = {
    "no cache": policy_spec("vllm_v1", cache__block_size=SIZE, cache__prefix="none", cache__share_samples=True),
    "hash": policy_spec("vllm_v1", cache__block_size=SIZE, cache__share_samples=True),
    "radix": policy_spec("sglang", cache__block_size=SIZE, cache__share_samples=True),
    "swapping": policy_spec(
        "vllm_v1",
        cache__block_size=SIZE,
        cache__prefix="none",
        cache__preemption="swap",
        cache__host_blocks=HOST_BLOCKS,
        cache__share_samples=True,
    ),
    "keeping": policy_spec("vllm_v1", cache__block_size=SIZE, cache__preemption="keep", cache__share_samples=True),
    "small chunks": policy_spec("sarathi", cache__block_size=SIZE, batch__token_budget=24, cache__share_samples=True),
}


def traffic() -> list[PlannedRequest]:
    """Four prompts, three samples of each, 2 ms apart: far more than the pool holds at once.

    All prompts fit, and whatever is slow, the samples of the first one find its blocks.
    """
    rows = [PlannedRequest(i, 2 * i * NS_PER_MS, 20 + 7 * i, 9 + i, 16, seed=i) for i in range(4)]
    return list(with_samples(rows, 3))


@pytest.mark.parametrize("name", SPECS)
def test_policies_that_share(name: str, executor: TorchExecutor) -> None:
    """Block tables are the core's at every step, tokens those of each sample alone; some prompt was shared, and what
    the engine was asked to copy is what the records say.
    """
    report, sink, _ = watched(SPECS[name], executor, requests=traffic())
    assert report.outcomes == {"finished": 12}
    assert any(record.shared_tokens for record in sink.of(Admitted))
    assert sum(step.copied_on_write for step in sink.of(Step)) > 0
    ended = {record.request: record for record in sink.of(Finished)}
    for planned in traffic():
        expected = alone(executor, replace(planned, index=10_000 + planned.index, group=_moved(planned.group)))
        assert ended[planned.index].tokens == expected.tokens


def _moved(group: int | None) -> int | None:
    return None if group is None else 10_000 + group


def test_cancels_of_first_samples_leave_the_others_their_tokens(executor: TorchExecutor) -> None:
    """The client of the first sample of each prompt gives up after 1 ms, wherever it is then."""
    requests = [replace(r, cancel_ns=NS_PER_MS if r.index == r.group else None) for r in traffic()]
    report, sink, _ = watched(SPECS["no cache"], executor, requests=requests)
    assert sum(report.outcomes.values()) == 12
    assert executor.tables() == {}
    for record in sink.of(Finished):
        planned = requests[record.request]
        expected = alone(executor, replace(planned, index=10_000 + planned.index, group=_moved(planned.group)))
        got = record.tokens or []
        assert got == expected.tokens[: len(got)]
        assert len(got) == len(expected.tokens) or record.outcome == "cancelled"


@pytest.mark.parametrize("overlap", ["two_stream", "schedule_ahead"])
def test_with_a_step_launched_before_the_last_is_read(overlap: str) -> None:
    """Copies keep their place between the steps that the worker computes."""
    ahead = engine(overlap=Overlap(overlap))
    spec = SPECS["swapping"].model_copy(
        update={"execution": SPECS["swapping"].execution.model_copy(update={"overlap": overlap})}
    )
    report, sink = drive(spec, ahead, depth=2, requests=traffic())
    assert report.outcomes == {"finished": 12}
    assert sum(step.copied_on_write for step in sink.of(Step)) > 0
    plain = engine()
    ended = {record.request: record for record in sink.of(Finished)}
    for planned in traffic():
        assert ended[planned.index].tokens == alone(plain, planned).tokens


def test_blocks_are_copied_whole_in_every_layout_of_pages() -> None:
    """Blocks come first in all pages, whatever lies behind: out of block 2 first, 2 into 3 then, into 2 at last."""
    layouts = [(6, 4, 2, 3), (6, 2, 4, 3), (6, 2, 3, 4), (6, 24)]
    pages = [torch.arange(6.0).view(6, *[1] * (len(shape) - 1)).expand(shape).contiguous() for shape in layouts]
    pool = CpuHostPool(pages, 2)
    pool.copy(StepPlan(0, (), copies_out=(BlockCopy(2, 0),), copies_on_write=(BlockCopy(2, 3), BlockCopy(2, 5))))
    assert [[float(block.flatten()[0]) for block in page] for page in pages] == [[0, 1, 2, 2, 4, 2]] * 4
    pool.copy(StepPlan(1, (), copies_on_write=(BlockCopy(1, 0),), copies_in=(BlockCopy(0, 1),)))
    assert [[float(block.flatten()[0]) for block in page] for page in pages] == [[1, 2, 2, 2, 4, 2]] * 4
    assert all(bool((page == page.flatten(1)[:, :1].view(6, *[1] * (page.ndim - 1))).all()) for page in pages)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({"copies_on_write": (BlockCopy(0, 9),)}, "outside pools of 4 and 4"),
        ({"copies_on_write": (BlockCopy(0, 1), BlockCopy(2, 1))}, "writes a block twice"),
        ({"copies_on_write": (BlockCopy(0, 1), BlockCopy(1, 2))}, "reads block 1, which the step fills"),
        ({"copies_on_write": (BlockCopy(0, 1),), "copies_in": (BlockCopy(0, 0),)}, "reads block 0, which the step"),
    ],
)
def test_copies_that_no_plan_may_ask_for(copies: dict[str, Any], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        check_copies(StepPlan(1, (), **copies), kv_blocks=4, host_blocks=2)
