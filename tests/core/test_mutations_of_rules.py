"""Known bugs of this kind of program, planted in single rules: the scene that names the rule must notice each."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.kv.prefix_radix import RadixIndex
from scheduler_core.policies.budgets import PhaseBudgets
from scheduler_core.policies.feedback import AdaptiveWatermark
from scheduler_core.policies.gatekeeper import AdaptiveQueue, Bucket, Gatekeeper
from scheduler_core.policies.rounds import LastRounds
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.progress import Progress
from scheduler_core.sched import planner
from scheduler_core.sched.aging import AgedQueue
from scheduler_core.sched.lines import Lines
from scheduler_core.sched.planner import StepBuilder
from scheduler_core.sched.swapping import Aside
from scheduler_core.sim.drafts import Drafts
from scheduler_core.sim.lanes import Lanes
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.dependencies import Dependents
from tests.core import (
    test_budgets,
    test_dependencies,
    test_eviction,
    test_feedback,
    test_gate,
    test_lanes,
    test_orders,
    test_quotas,
    test_speculative,
    test_stopping,
    test_swapping,
)
from tests.core.test_mutations import rewritten


def a_drained_queue_lets_in_again() -> None:
    """300 prompt tokens wait at once, over 250; half a second later they are computed, and one more may come."""
    spec = policy_spec("vllm_v1", admission__reject_queued_tokens=250)
    requests = [*(request(i, 100, 2) for i in range(3)), request(3, 100, 2, at_ms=500)]
    played = play(spec, requests, target=profile(base_ms=1, prefill_token_ms=0.1))
    assert played.report.outcomes == {"finished": 4}


Scene = Callable[[], None]
MUTATIONS: dict[str, tuple[Any, str, str, str, Scene]] = {
    "a draft goes beyond the limit": (
        LiveRequest, "may_draft", "self.promised - 1", "self.promised + 9",
        test_speculative.test_a_perfect_draft_ends_with_the_answer),
    "a draft takes what another could have": (
        StepBuilder, "_drafts", "length - others", "length",
        test_speculative.test_drafts_take_no_token_that_another_request_could_have),
    "rejected drafts count as computed": (
        Progress, "confirm", "self.granted += accepted", "self.granted += accepted + 1",
        test_speculative.test_blocks_of_rejected_drafts_are_used_by_the_next_step),
    "drafts of a step in flight are lost with the blocks": (
        Progress, "deliver_late", "1 + accepted", "1",
        test_speculative.test_drafts_of_a_request_that_lost_its_blocks_in_flight_still_count),
    "an answer goes on behind its end": (
        Drafts, "accepted", "left - 1", "left + 9",
        test_speculative.test_nothing_is_emitted_beyond_the_end_that_nobody_knew_of),
    "every draft of a request fares alike": (
        Drafts, "accepted", "emitted + place", "place",
        test_speculative.test_what_is_accepted_is_the_request_s_own_whoever_shares_the_batch),
    "a second copy of a beginning is kept": (
        RadixIndex, "publish", "return found[start:]", "return []",
        test_eviction.test_two_that_compute_the_same_keep_one_copy),
    "a leaf that is free again never takes its turn": (
        RadixIndex, "keep", "self._offer(node)", "None",
        test_eviction.test_a_leaf_goes_whole_and_its_parent_takes_its_turn),
    "the oldest paused request is revoked": (
        planner, "youngest_paused", "max(", "min(",
        test_stopping.test_keeping_waits_with_the_blocks_and_revokes_the_youngest),
    "what comes back from the host has no blocks": (
        planner, "take_back", "state.memory.swap_in(request)", "None", test_stopping.test_swap_out_and_in),
    "who has waited for the bound has to wait on": (
        AgedQueue, "head", "<= self._now_ns", "<= 0",
        test_orders.test_without_a_bound_urgent_traffic_starves_the_rest_and_with_one_it_does_not),
    "a resource works for two steps at once": (
        Lanes, "place", "self._free[engine] = at", "self._free[engine] = 0",
        test_lanes.test_serial_is_the_sum_and_overlapped_the_longest_chain),
    "whoever was served still waits at the gate": (
        Gatekeeper, "_forget", "self._queued_tokens -= self._queued.pop(request, 0)", "self._queued.pop(request, 0)",
        a_drained_queue_lets_in_again),
    "a bucket refills at once": (
        Bucket, "take", "start + round(units", "now_ns + round(units",
        test_gate.test_a_bucket_lets_in_at_its_rate_after_a_burst),
    "a gate closes while promises are kept": (
        AdaptiveQueue, "adapt", "figures.attainment < self._target", "figures.attainment > self._target",
        test_feedback.test_a_gate_that_reads_attainment_by_hand),
    "a round is seen before its lag is over": (
        LastRounds, "begun", "len(self._hidden) > self._lag", "len(self._hidden) >= self._lag",
        lambda: test_feedback.test_a_round_is_seen_only_after_its_lag(1)),
    "who gave up counts for nothing": (
        LastRounds, "ended", "self._tally.promised += 1", "self._tally.promised += 0",
        test_feedback.test_who_gave_up_missed_the_promise_and_who_was_promised_nothing_does_not_count),
    "the watermark grows without end": (
        AdaptiveWatermark, "adapt", "min(self._most, ", "max(0, ",
        test_feedback.test_the_watermark_doubles_while_requests_come_back_and_shrinks_when_none_does),
    "every prompt has the prompt budget to itself": (
        PhaseBudgets, "limit", "self.prefill - spent", "self.prefill", test_budgets.test_both_budgets_by_hand),
    "decodes are not counted": (
        PhaseBudgets, "limit", "self.decode - view.decodes", "self.decode", test_budgets.test_both_budgets_by_hand),
    "the first parent is enough": (
        Dependents, "ended", "self._open[index] == 1", "self._open[index] >= 1",
        test_dependencies.test_a_fan_out_comes_together_by_hand),
    "the parent told last counts, not the one that ended last": (
        Dependents, "ended", "max(at_ns, self._latest.pop(index, at_ns))", "at_ns",
        test_dependencies.test_the_latest_end_counts_in_whatever_order_ends_are_told),
    "KV of the first in the queue goes first": (
        Aside, "spill", "max(paused", "min(paused",
        test_swapping.test_who_needs_blocks_takes_them_from_the_end_of_the_queue),
    "no room is kept for newcomers": (
        Aside, "look_ahead", "memory.free < room", "memory.free < 0",
        test_swapping.test_kv_goes_to_keep_room_and_comes_back_when_there_is_more),
    "newcomers fill the host": (
        Aside, "shuts_out", "free < rules.host_low", "free < 0",
        test_swapping.test_nobody_new_comes_in_while_the_host_is_nearly_full),
    "who waits for a slot forgets blocks it was just given": (
        planner, "set_aside", "state.memory.trim(victim, fresh)", "None",
        test_swapping.test_who_needs_blocks_takes_them_from_the_end_of_the_queue),
    "a line that was passed over is passed over for ever": (
        Lines, "recall", "self._passed.clear()", "None",
        test_quotas.test_who_would_exceed_its_quota_waits_and_others_go_on),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, old, new, scene = MUTATIONS[name]
    original = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, rewritten(original, old, old))
    scene()
    monkeypatch.setattr(owner, attribute, rewritten(original, old, new))
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or whatever law the bug breaks first
        scene()
