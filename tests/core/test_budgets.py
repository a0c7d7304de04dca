"""Token budgets by phase: what a step takes of prompts and of decodes, each bounded by itself."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import check_against
from scheduler_core.testing.builders import Stepper, play, policy_spec, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Deferred, Step
from tests.core.test_fastforward import fused, plain, without_samples


def budgeted(policy: str = "vllm_v1", **settings: Any) -> Any:
    return policy_spec(policy, **{f"batch__{name}": value for name, value in settings.items()})


def test_both_budgets_by_hand() -> None:
    """Budget 16, of which 6 for prompts; 2 decodes a step. Prompts of 5, 4 and 3 tokens, then 1 token a step.

    Step 0: a whole (5), of b what is left of 6 (1); c gets nothing. Step 1: a decodes, b's other 3, c whole (3).
    Step 2: a and b decode, which are the two; c holds still until one of them is over.
    """
    stepper = Stepper(budgeted(token_budget=16, prefill_budget=6, decode_budget=2), Capacity(100, 100))
    for index, prompt in enumerate((5, 4, 3)):
        stepper.submit(index, prompt)
    assert [stepper.step() for _ in range(3)] == [{0: 5, 1: 1}, {0: 1, 1: 3, 2: 3}, {0: 1, 1: 1}]
    assert stepper.step(last=(0,)) == {0: 1, 1: 1}
    assert stepper.step() == {1: 1, 2: 1}


def test_a_spent_prompt_budget_is_named_with_its_numbers() -> None:
    """6 prompt tokens a step, all taken by the first: the second needs 4 and finds 0, with 10 of the step's 16 left."""
    stepper = Stepper(budgeted(token_budget=16, prefill_budget=6), Capacity(100, 100))
    stepper.submit(0, 6)
    stepper.submit(1, 4)
    assert stepper.step() == {0: 6}
    (deferred,) = [record for record in stepper.records if isinstance(record, Deferred)]
    assert (deferred.request, deferred.reason, deferred.need, deferred.have) == (1, "no_budget", 4, 0)


def test_a_prompt_budget_without_chunks_is_refused() -> None:
    with pytest.raises(InputError, match=r"batch\.prefill_budget.*chunked_prefill is off"):
        check_against(
            budgeted(prefill_budget=6, chunked_prefill=False, token_budget=64), model_length=10, kv_blocks=None
        )


@settings(max_examples=60)
@given(
    policy=st.sampled_from(["vllm_v1", "fastserve", "vtc"]),
    prefill=st.sampled_from([None, 1, 7]),
    decode=st.sampled_from([None, 1, 2]),
    prefix=st.sampled_from(["none", "hash"]),
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 24), st.integers(1, 16)), min_size=1, max_size=12),
    blocks=st.integers(11, 40),
)
def test_no_step_exceeds_them_all_end_and_fast_forward_is_the_same(
    policy: str, prefill: int | None, decode: int | None, prefix: str, rows: Any, blocks: int
) -> None:
    by_phase = {"prefill_budget": prefill, "decode_budget": decode}
    by_phase = {name: most for name, most in by_phase.items() if most is not None}
    spec = budgeted(policy, size=4, token_budget=24, **by_phase)
    cache = {"block_size": 4} | ({"prefix": prefix} if policy != "fastserve" else {})
    spec = spec.model_copy(update={"cache": spec.cache.model_copy(update=cache)})
    at, requests = 0, []
    for index, (gap, prompt, output) in enumerate(rows):
        at += gap
        requests.append(request(index, prompt, output, at_ms=at, output_limit=18, tenant=f"t{index % 2}"))
    capacity = Capacity(blocks, 60)
    steps, ends = plain(spec, requests, capacity)
    assert {end[5] for end in ends.values()} == {"finished"}
    for step in play(spec, requests, capacity=capacity).sink.of(Step):
        assert prefill is None or sum(row[3] for row in step.grants if row[4] != "decode") <= prefill
        again = [row for row in step.grants if row[2] == row[6]]  # first grants: who comes in, or back
        assert decode is None or sum(row[4] == "decode" for row in step.grants if row not in again) <= decode
    fast, fast_ends, _ = fused(spec, requests, capacity)
    assert without_samples(fast) == without_samples(steps)
    assert fast_ends == ends
