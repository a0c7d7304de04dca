"""Golden vectors: small scenes of named systems with the grants, orders and counts that their rules give."""

from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.testing.builders import Stepper, grants_of, play, policy_spec, profile, request
from scheduler_core.types.reasons import Outcome, Reject
from scheduler_core.types.records import Admitted, Finished, Preempted, Step
from scheduler_core.types.time import ns_from_ms

ROOMY = Capacity(1000, 10_000)


def vllm(**settings: Any) -> Any:
    return policy_spec("vllm_v1", **settings)


def test_chunk_cap() -> None:
    """Budget 1,024, cap 400, three prompts of 800.

    400 + 400 leave 224 for the third, twice; then the first two decode and 1,024 - 2 covers the third's last 352.
    """
    stepper = Stepper(vllm(batch__token_budget=1024, batch__long_prefill_cap=400), ROOMY)
    for index in range(3):
        stepper.submit(index, 800)
    assert [list(stepper.step().values()) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


def test_alone_in_the_system_the_cap_does_not_count() -> None:
    """V-09: one prompt of 800 with cap 400 is granted whole."""
    stepper = Stepper(vllm(batch__token_budget=1024, batch__long_prefill_cap=400), ROOMY)
    stepper.submit(0, 800)
    assert stepper.step() == {0: 800}


@pytest.mark.parametrize(("chunked", "admitted"), [(True, {0: 800, 1: 224}), (False, {0: 800})])
def test_no_overtaking_without_chunking(chunked: Any, admitted: Any) -> None:
    """Budget 1,024, prompts 800, 800, 10, 10: the second does not fit whole, and those behind it must not pass it."""
    stepper = Stepper(vllm(batch__token_budget=1024, batch__size=3, batch__chunked_prefill=chunked), ROOMY)
    for index, prompt in enumerate((800, 800, 10, 10)):
        stepper.submit(index, prompt)
    assert stepper.step() == admitted


def test_preempt_while_in_flight() -> None:
    """Block 16, 10 blocks, two prompts of 80 (5 blocks each) in two overlapped steps.

    A's first token makes A need a sixth block: B is preempted while its step runs. B's token counts all the same.
    """
    spec = vllm(batch__token_budget=100, cache__prefix="none")
    stepper = Stepper(spec, Capacity(10, 1000), depth=2)
    stepper.submit(0, 80, limit=20)
    first = stepper.plan()
    stepper.submit(1, 80, limit=20)
    second = stepper.plan()
    assert (grants_of(first), grants_of(second)) == ({0: 80}, {1: 80})
    stepper.complete(first)
    third = stepper.plan()
    assert grants_of(third) == {0: 1}
    assert [record.request for record in stepper.records if isinstance(record, Preempted)] == [1]
    completed = stepper.complete(second)
    assert [request for _, request in completed.emitted] == [1]
    stepper.complete(third)
    ended = stepper.instance.abort(1)
    assert ended is not None
    assert (ended.output_tokens, ended.stage) == (1, "queue")


def test_free_list_order() -> None:
    """Block 16, ids 1 to 10, A = 48 shared + 7 tokens, B = the same 48 + 5.

    A takes 1 2 3 4; B hits 1 2 3 and takes 5. Freeing A puts 4 (unknown content) in front; freeing B puts 5 before it
    and 3 2 1 (known) at the back. C hits 3 blocks and takes 5. A stranger of 160 tokens takes all in that order.
    """
    stepper = Stepper(vllm(), Capacity(10, 1000), first_block=1)
    shared = {"prefix_blocks": (7, 8, 9)}
    stepper.submit(0, 55, limit=9, **shared)
    assert stepper.plan_blocks() == (1, 2, 3, 4)
    stepper.submit(1, 53, limit=9, **shared)
    assert stepper.plan_blocks() == (1, 2, 3, 5)
    stepper.instance.abort(0)
    stepper.instance.abort(1)
    order = [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert stepper.instance.free_order() == order
    stepper.submit(2, 50, limit=9, **shared)
    assert stepper.plan_blocks() == (1, 2, 3, 5)
    stepper.instance.abort(2)
    assert stepper.instance.free_order() == order
    stepper.submit(3, 160, limit=1)
    assert stepper.plan_blocks() == tuple(order)


@pytest.mark.parametrize(
    ("priorities", "arrivals", "order"),
    [
        ((2, 0, 1), (0, 0, 0), [1, 2, 0]),
        ((1, 1, 1), (3, 1, 2), [1, 2, 0]),
        ((2, 1, 1, 0), (1, 3, 2, 4), [3, 2, 1, 0]),
    ],
)
def test_priority_order(priorities: Any, arrivals: Any, order: Any) -> None:
    """Smaller priority first, then earlier arrival."""
    stepper = Stepper(vllm(order__by="priority"), ROOMY)
    for index, (priority, arrival) in enumerate(zip(priorities, arrivals, strict=True)):
        stepper.submit(index, 10, priority=priority, arrival_ns=arrival)
    assert list(stepper.step()) == order


def test_priority_victim_and_budget_return() -> None:
    """Block 16, 5 blocks: low (priority 5, 32 tokens) takes its third block when high (0, 32 tokens) joins.

    High's third block is not there: low, already granted 1 token in that step, loses it; the token returns to the
    budget, so exactly high's 1 token is computed.
    """
    stepper = Stepper(vllm(order__by="priority", cache__prefix="none"), Capacity(5, 1000))
    stepper.submit(0, 32, limit=30, priority=5)
    assert stepper.step() == {0: 32}
    stepper.submit(1, 32, limit=30, priority=0)
    assert stepper.step() == {0: 1, 1: 32}
    planned = stepper.plan()
    assert grants_of(planned) == {1: 1}
    assert planned.plan.tokens == 1
    (preempted,) = (record for record in stepper.records if isinstance(record, Preempted))
    assert (preempted.request, preempted.tokens_lost, preempted.blocks) == (0, 33, 3)


def test_returned_budget_is_used_by_others() -> None:
    """Budget 10, blocks of 8, pool of 4: what a victim gives back is granted to a later request of the same step.

    Second step: low 1, high 8, the third 1 of its 10: one block each, one free. Third step: low takes the free block
    (1 token); high needs one as well, so low gives way and its token returns: high 1 leaves 9 for the third, not 8.
    """
    spec = vllm(order__by="priority", cache__prefix="none", cache__block_size=8, batch__token_budget=10)
    stepper = Stepper(spec, Capacity(4, 100))
    stepper.submit(0, 7, limit=9, priority=5)
    assert stepper.step() == {0: 7}
    stepper.submit(1, 8, limit=9, priority=0)
    stepper.submit(2, 10, limit=1, priority=1)
    assert stepper.step() == {0: 1, 1: 8, 2: 1}
    assert stepper.step() == {1: 1, 2: 9}


@pytest.mark.parametrize(("prompt", "hit", "computed"), [(32, 16, 16), (33, 32, 1)])
def test_full_hit_recomputes_something(prompt: Any, hit: Any, computed: Any) -> None:
    """V-21: at most floor((known - 1) / 16) blocks are taken from the cache."""
    stepper = Stepper(vllm(), ROOMY)
    stepper.submit(0, 40, prefix_blocks=(1, 2, 3))
    stepper.step(last=[0])
    stepper.submit(1, prompt, prefix_blocks=(1, 2, 3))
    planned = stepper.plan()
    (grant,) = planned.plan.grants
    assert (grant.hit_tokens, grant.start, grant.length) == (hit, hit, computed)


def test_resume_by_hit() -> None:
    """Blocks of 2, pool of 7: A and B have 5 tokens and 4 outputs, C one token.

    A's third token needs its fourth block: C gives way. B's third needs one too: B is now the last and gives way.
    B keeps its three full blocks in the cache, nobody overwrites them, and once A has ended B (7 known) resumes with
    a hit of 6 and a grant of 1.
    """
    stepper = Stepper(vllm(cache__block_size=2), Capacity(7, 100))
    stepper.submit(0, 5, limit=4)
    stepper.submit(1, 5, limit=4)
    stepper.submit(2, 1, limit=9)
    assert stepper.step() == {0: 5, 1: 5, 2: 1}
    assert stepper.step() == {0: 1, 1: 1, 2: 1}
    assert stepper.step() == {0: 1}
    assert [r.request for r in stepper.records if isinstance(r, Preempted)] == [2, 1]
    assert stepper.step() == {0: 1}  # A's fourth and last token
    planned = stepper.plan()
    grant = planned.plan.grants[0]
    assert (grant.request, grant.hit_tokens, grant.length, grant.epoch) == (1, 6, 1, 1)
    (resumed,) = (r for r in stepper.records if isinstance(r, Admitted) and r.request == 1 and r.resumed)
    assert resumed.hit_tokens == 6


def test_never_fits_is_refused_at_submit() -> None:
    """Pool of 260 blocks of 16, request of 2,000 + 3,000 tokens: needs ceil(4,999 / 16) = 313."""
    stepper = Stepper(vllm(), Capacity(260, 10_000))
    ended = stepper.submit(0, 2000, limit=3000)
    assert ended is not None
    assert (ended.outcome, ended.reason) == (Outcome.REJECTED, Reject.NEVER_FITS_POOL)
    assert (ended.need, ended.have) == (313, 260)


def test_static_batch_of_two() -> None:
    """Size 2, a decode step takes 1 ms, a prefill step 10 ms; A (3 out), B (1), C (2) all arrive at 0.

    A and B prefill 0-10; A emits at 11 and 12 while B holds its slot; C prefills 12-22 and emits at 22 and 23.
    """
    spec = policy_spec("static", batch__size=2)
    # 1 ms + 0.225 ms x 40 prompt tokens is 10 ms for the pair; C brings 40 alone.
    requests = [request(0, 20, 3), request(1, 20, 1), request(2, 40, 2)]
    played = play(spec, requests, target=profile(base_ms=1, prefill_token_ms=0.225))
    first: dict[int, int] = {}
    for step in played.sink.of(Step):
        for row in step.grants:
            if row[5]:
                first.setdefault(row[0], step.available_ns)
    assert [first[index] for index in range(3)] == [ns_from_ms(10), ns_from_ms(10), ns_from_ms(22)]
    ends = {record.request: record.at_ns for record in played.sink.of(Finished)}
    assert [ends[index] for index in range(3)] == [ns_from_ms(12), ns_from_ms(10), ns_from_ms(23)]


def test_full_remote_delivery_computes_the_last_token_again() -> None:
    """Vector 8: blocks of 16, 32 of 32 prompt tokens delivered: 31 count as computed, and the next grant is 1."""
    stepper = Stepper(policy_spec("vllm_v1", cache__block_size=16), Capacity(20, 100))
    spec = RequestSpec(id=0, arrival_ns=0, prompt_tokens=32, output_limit=5)
    reserved = stepper.instance.reserve(Leaving(spec, known=32, computed=32, epoch=1), 0)
    assert isinstance(reserved, Reserved) and reserved.hit_tokens == 0
    stepper.instance.land(0, 32)
    (grant,) = stepper.plan().plan.grants
    assert (grant.start, grant.length, grant.samples) == (31, 1, True)
