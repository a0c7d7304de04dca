"""The preset after SGLang rule by rule: budgets in pages, mixed chunks, priorities, queue cap, conservativeness."""

from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import Stepper, play, play_cluster, policy_spec, request
from scheduler_core.types.records import Finished, Preempted, Step

ROOMY = Capacity(200, 1000)


def sglang(**settings: Any) -> Any:
    return policy_spec("sglang", **{"cache__prefix": "none", "cache__block_size": 16, **settings})


def test_prompts_are_charged_by_whole_pages() -> None:
    """G-11: chunk 64 = 4 pages of 16. Prompts of 17 and 17 are charged 2 pages each, so the third waits: 34 computed.

    Charged by token, 30 of the third would have come along.
    """
    stepper = Stepper(sglang(batch__token_budget=64), ROOMY)
    for index in range(3):
        stepper.submit(index, 17, limit=5)
    assert [stepper.step() for _ in range(2)] == [{0: 17, 1: 17}, {2: 17}]


def test_a_cut_prompt_gets_the_pages_that_are_left() -> None:
    """G-11, G-12: chunk 64, prompts of 20 and 90: 2 pages for the first, 2 of 6 for the second; then 4, then 58 - 64.

    The second is mid-chunk and comes first: 32 done, 58 to go, which are 4 pages and fit whole.
    """
    stepper = Stepper(sglang(batch__token_budget=64), ROOMY)
    stepper.submit(0, 20, limit=5)
    stepper.submit(1, 90, limit=5)
    assert [stepper.step() for _ in range(2)] == [{0: 20, 1: 32}, {1: 58}]


def test_without_cuts_only_the_first_may_exceed_the_input_budget() -> None:
    """G-11: inputs 48 = 3 pages. 100 comes alone, whole; then 17 (2 pages) with 16 (1 page); 16 more have to wait."""
    stepper = Stepper(sglang(batch__chunked_prefill=False, batch__input_budget=48), ROOMY)
    for index, prompt in enumerate((100, 17, 16, 16)):
        stepper.submit(index, prompt, limit=5)
    assert [stepper.step() for _ in range(3)] == [{0: 100}, {1: 17, 2: 16}, {3: 16}]


def test_more_decodes_than_chunk_tokens_all_get_theirs() -> None:
    """What bounds a step are the budgets for prompts: a chunk of 2 pages, 40 requests of 1 token decode together."""
    stepper = Stepper(sglang(batch__token_budget=32), ROOMY)
    for index in range(40):
        stepper.submit(index, 1, limit=50)
    while sum(stepper.step().values()) != 40:
        assert stepper.now < 60


def mixed(**settings: Any) -> Any:
    return sglang(**{"batch__mixed_chunk": True, "batch__token_budget": 64, **settings})


def test_decodes_join_a_prefill_and_are_taken_off_its_chunk() -> None:
    """G-03: two requests decode, so 62 of the chunk's 64 tokens are left: 3 whole pages, 48 of a prompt of 100.

    Then 52 are to go, 4 pages, and again only 3 fit; at last 4, with the decodes beside them.
    """
    stepper = Stepper(mixed(), ROOMY)
    stepper.submit(0, 10, limit=50)
    stepper.submit(1, 10, limit=50)
    assert stepper.step() == {0: 10, 1: 10}
    stepper.submit(2, 100, limit=50)
    assert [stepper.step() for _ in range(4)] == [
        {2: 48, 0: 1, 1: 1},
        {2: 48, 0: 1, 1: 1},
        {2: 4, 0: 1, 1: 1},
        {0: 1, 1: 1, 2: 1},
    ]


def test_decodes_sit_out_where_their_next_blocks_are_not_there() -> None:
    """G-03: pool of 8 pages of 16, three requests of 16 tokens, each of which needs a second page to decode.

    With the ratio at 0 they keep 1 token each, for the mixed step, so the room is 5 pages less that, 77 tokens. A
    prompt of 44 with limit 1 asks for 3 pages and one more, 64. It takes 3 pages, and 2 are not enough for three
    decodes: all of them sit out, nobody is stopped. When it has ended, they go on.
    """
    stepper = Stepper(mixed(), Capacity(8, 100))
    for index in range(3):
        stepper.submit(index, 16, limit=2)
    assert stepper.step() == {0: 16, 1: 16, 2: 16}
    stepper.submit(3, 44, limit=1)
    stepper.instance.policy.admission.ratio = 0.0  # type: ignore[attr-defined]
    assert [stepper.step() for _ in range(2)] == [{3: 44}, {0: 1, 1: 1, 2: 1}]
    assert not any(isinstance(record, Preempted) for record in stepper.records)


def test_mixed_steps_hold_both_and_plain_ones_never() -> None:
    requests = [request(index, 40 + 7 * index, 20, at_ms=3 * index) for index in range(12)]
    kinds = {
        chunk: {len({row[4] == "decode" for row in step.grants}) for step in play(spec, requests).sink.of(Step)}
        for chunk, spec in (("mixed", mixed()), ("alone", sglang()))
    }
    assert kinds == {"mixed": {1, 2}, "alone": {1}}


@pytest.mark.parametrize(("priority", "stopped"), [(11, [1]), (10, [])])
def test_a_slot_changes_hands_beyond_the_threshold(priority: int, stopped: list[int]) -> None:
    """G-14: two slots, both of ``priority``; one of 0 waits. 11 is more than 10: the newest is stopped; 10 is not."""
    stepper = Stepper(sglang(order__by="priority", batch__size=2), ROOMY)
    for index in range(2):
        stepper.submit(index, 10, priority=priority)
    stepper.step()
    stepper.submit(2, 10, priority=0)
    assert (2 in stepper.step()) is bool(stopped)
    assert [r.request for r in stepper.records if isinstance(r, Preempted)] == stopped


@pytest.mark.parametrize(("prompt", "stopped"), [(64, [1, 0]), (110, [])])
def test_memory_changes_hands_only_if_it_would_be_enough(prompt: int, stopped: list[int]) -> None:
    """G-14, pool of 8 pages of 16 = 128 tokens. Two requests of 32 tokens and limit 4, of priority 20, have run a step.

    Each holds 2 pages and, with 3 left of its limit at ratio 0.7, keeps 2.1 more, so the room is 64 - 4.2. A request of
    priority 0 asks for its prompt and its limit of 4 in pages, and one more: with a prompt of 64 that is 80 + 16 = 96,
    36.2 more than there is. One victim gives 34.1, both 68.2: newest first, both go. With a prompt of 110 it is
    128 + 16 = 144, 84.2 more, and 68.2 are not enough: nobody is stopped.
    """
    stepper = Stepper(sglang(order__by="priority"), Capacity(8, 120))
    for index in range(2):
        stepper.submit(index, 32, limit=4, priority=20)
    stepper.step()
    stepper.submit(2, prompt, limit=4, priority=0)
    assert (2 in stepper.step()) is bool(stopped)
    assert [r.request for r in stepper.records if isinstance(r, Preempted)] == stopped


def test_who_was_stopped_waits_behind_its_equals() -> None:
    """G-08, G-14: one slot. A of priority 20 runs, B of 20 waits; C of 0 takes the slot, and B comes before A then."""
    stepper = Stepper(sglang(order__by="priority", batch__size=1), ROOMY)
    stepper.submit(0, 10, limit=9, priority=20)
    stepper.step()
    stepper.submit(1, 10, limit=1, priority=20)
    stepper.submit(2, 10, limit=1, priority=0)
    assert [list(stepper.step()) for _ in range(3)] == [[2], [1], [0]]


def capped(**settings: Any) -> Any:
    return sglang(batch__size=1, batch__queue_limit=2, **settings)


def ends(spec: Any, *priorities: int) -> dict[int, tuple[str, str]]:
    """One running request of priority 0, then one of each of ``priorities`` at 1 ms, 2 ms, ..."""
    requests = [request(0, 10, 50)]
    requests += [request(n, 10, 1, at_ms=n, priority=priority) for n, priority in enumerate(priorities, start=1)]
    return {r.request: (r.outcome, r.reason) for r in play(spec, requests).sink.of(Finished)}


def test_a_full_queue_refuses_the_newcomer() -> None:
    """G-15, two places: the third that has to wait is refused, however urgent it is."""
    outcomes = ends(capped(), 20, 20, 0)
    assert outcomes[3] == ("rejected", "queue_full")
    assert [outcomes[n][0] for n in range(3)] == ["finished"] * 3


def test_a_full_queue_gives_up_its_worst_for_a_strictly_better_one() -> None:
    """G-15: priorities 3, 5 wait. 5 is no better than the worst: refused. 4 is: the 5 goes. Then 4 is no better."""
    outcomes = ends(capped(order__by="priority"), 3, 5, 5, 4, 4)
    assert [outcomes[n] for n in (2, 3, 5)] == [("rejected", "queue_full")] * 3
    assert [outcomes[n][0] for n in (0, 1, 4)] == ["finished"] * 3


def test_a_cluster_gives_up_the_worst_in_the_queue_it_sent_to() -> None:
    spec = capped(order__by="priority", pools__layout="replicas")
    requests = [request(0, 10, 50), *(request(n, 10, 1, at_ms=n, priority=5 - n) for n in range(1, 5))]
    _, sink, cluster = play_cluster(spec, requests, {"a": 1})
    assert [(r.request, r.outcome) for r in sink.of(Finished)][:2] == [(1, "rejected"), (2, "rejected")]
    assert not cluster.open_requests()


def test_conservativeness_scales_the_initial_ratio() -> None:
    """G-16: min(1, 0.7 x 0.5) = 0.35 and min(1, 0.7 x 2) = 1."""
    for factor, initial in ((0.5, 0.35), (1, 0.7), (2, 1.0)):
        stepper = Stepper(sglang(cache__conservativeness=factor), ROOMY)
        assert stepper.instance.policy.admission.ratio == initial  # type: ignore[attr-defined]
