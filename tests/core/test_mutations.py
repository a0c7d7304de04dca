"""Known bugs of this kind of program, planted one at a time: the suite must notice each.

A mutation rewrites the source of one function and puts the result in its place; then the scenes below run until one of
them fails. A mutation that no scene notices fails the test.
"""

import inspect
import sys
import textwrap
from typing import Any

import pytest

from scheduler_core.kv.eviction import ReleaseOrder
from scheduler_core.kv.ledger import Ledger
from scheduler_core.policies.parts import LastAdmitted, LongPrefillCap, WholeBatches, WorstPriority
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.vtc import VirtualTokenCounter
from scheduler_core.request.progress import Progress
from scheduler_core.sched import stopping
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.memory import BlockMemory
from scheduler_core.sched.planner import StepBuilder
from scheduler_core.testing.builders import policy_spec, request
from tests.core import test_driver, test_fastforward, test_golden_vectors, test_presets, test_public_faults


def tight_pool_is_the_same_with_fast_forward() -> None:
    """A pool that preempts, with a prefix cache and without."""
    requests = [request(i, 9 + i, 14, at_ms=2 * i, prefix_blocks=(1,), output_limit=16) for i in range(8)]
    for prefix in ("none", "hash"):
        spec = policy_spec("vllm_v1", cache__prefix=prefix, cache__block_size=4, batch__token_budget=24)
        expected = test_fastforward.plain(spec, requests, Capacity(16, 60))
        assert test_fastforward.fused(spec, requests, Capacity(16, 60))[:2] == expected


SCENES = [
    test_golden_vectors.test_chunk_cap,
    test_golden_vectors.test_alone_in_the_system_the_cap_does_not_count,
    test_golden_vectors.test_preempt_while_in_flight,
    test_golden_vectors.test_free_list_order,
    test_golden_vectors.test_priority_victim_and_budget_return,
    lambda: test_golden_vectors.test_full_hit_recomputes_something(32, 16, 16),
    test_golden_vectors.test_resume_by_hit,
    test_golden_vectors.test_static_batch_of_two,
    test_public_faults.test_the_pool_check_counts_allowed_outputs,
    lambda: test_public_faults.test_who_returns_first_after_preemption_follows_the_written_rule("arrival", 1),
    test_public_faults.test_a_cancel_during_the_last_step_is_a_cancel,
    test_driver.test_static_waits_for_a_full_batch_only_as_long_as_it_may,
    test_presets.test_vtc_lift,
    tight_pool_is_the_same_with_fast_forward,
]

MUTATIONS = {
    "a fully cached prompt computes nothing": (BlockMemory, "match", "request.known - 1", "request.known"),
    "a victim's budget is lost": (StepBuilder, "_preempt", "+= revoked.length", "+= 0"),
    "half-filled blocks are indexed": (
        BlockMemory,
        "publish",
        "tokens // self.block_size",
        "-(-tokens // self.block_size)",
    ),
    "blocks are freed head first": (Ledger, "release", "in reversed(table)", "in table"),
    "the latest released cached block is reused first": (ReleaseOrder, "pop", "last=False", "last=True"),
    "the first admitted gives way": (LastAdmitted, "pick", "iter(reversed(running))", "iter(running)"),
    "the best priority gives way": (WorstPriority, "pick", "max(", "min("),
    "an old epoch is not recognised": (Progress, "restart", "self.epoch += 1", "self.epoch += 0"),
    "the pool check ignores the output": (
        Instance,
        "_refuse",
        "spec.prompt_tokens + spec.output_limit",
        "spec.prompt_tokens",
    ),
    "the cap counts for one alone": (LongPrefillCap, "limit", "> 1", "> 0"),
    "a lone batch waits for ever": (WholeBatches, "wake_ns", "self.max_wait_ns", "10 * self.max_wait_ns"),
    "idle tenants are lifted too far": (VirtualTokenCounter, "arrived", "min(self", "max(self"),
    "a member's next block comes one step late": (Cohort, "join", "tick + 1 - known", "tick + 2 - known"),
    "a leaving member forgets its last token": (
        Cohort,
        "leave",
        "self.tick - request.joined",
        "self.tick - request.joined - 1",
    ),
    "granted blocks are not counted": (BlockMemory, "grow", "request.blocks += count", "request.blocks += 0"),
    "who is preempted waits at the end": (stopping, "_wait", "push_front(victim)", "push_back(victim, ())"),
}


def rewritten(function: Any, old: str, new: str) -> Any:
    """``function`` with ``old`` replaced in its source."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) >= 1, "the source has changed: rewrite the mutation"
    namespace: dict[str, object] = {}
    exec(source.replace(old, new), sys.modules[function.__module__].__dict__, namespace)
    return namespace[function.__name__]


def noticed() -> Any:
    """Name of the first scene that fails, or None."""
    for number, scene in enumerate(SCENES):
        try:
            scene()
        except Exception as error:
            return f"scene {number}: {type(error).__name__}"
    return None


def test_nothing_is_noticed_without_a_mutation() -> None:
    assert noticed() is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_is_noticed(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, old, new = MUTATIONS[name]
    original = getattr(owner, attribute)
    for text, expected in ((old, False), (new, True)):
        monkeypatch.setattr(owner, attribute, rewritten(original, old, text))
        assert (noticed() is not None) is expected
