"""The part of the audit that adds up the times of each request in the table of a run."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from scheduler_core.evidence.fold.sweep import unattributed_bound_ns
from scheduler_core.evidence.tables.requests import Requests
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.time import Ns

_AWAY = (IntervalClass.RESERVE_WAIT, IntervalClass.HANDOFF, IntervalClass.NETWORK_WAIT)
_SEGMENTS, _HANDOFFS = "R4 additivity", "handoff adds up"


class SumFault(NamedTuple):
    """A sum that does not agree: the rule, where, and what is wrong."""

    rule: str
    where: str
    message: str


def segments_add_up(requests: Requests, *, modelled: bool) -> Iterator[SumFault]:
    """Segments of finished requests are their time from arrival to last token; little of it is unattributed (R4)."""
    rows, done = requests.rows, requests.finished
    e2e = rows["last_token_ns"] - rows["arrival_ns"]
    lost, total = rows["unattributed_ns"], requests.segment_sum_ns()
    for row in (done & (total != e2e)).nonzero()[0]:
        message = f"segments add up to {int(total[row])} ns, E2E is {int(e2e[row])} ns"
        yield SumFault(_SEGMENTS, f"request {rows['request'][row]}", message)
    for row in (done & (lost > 0)).nonzero()[0]:
        bound = unattributed_bound_ns(int(e2e[row]), modelled=modelled)
        if int(lost[row]) > bound:
            message = f"{int(lost[row])} ns of {int(e2e[row])} ns unattributed, bound {bound} ns"
            yield SumFault(_SEGMENTS, f"request {rows['request'][row]}", message)


def handoffs_add_up(requests: Requests, away: Mapping[int, Ns]) -> Iterator[SumFault]:
    """Waits for room, network and bytes are how long each request was ``away``: held, or on its way."""
    rows, left = requests.rows, dict(away)
    parts = sum((rows[f"{kind}_ns"] for kind in _AWAY), np.zeros(len(requests), dtype=np.int64))
    for row in (requests.finished & (parts > 0)).nonzero()[0]:
        request = int(rows["request"][row])
        away_ns = left.pop(request, 0)
        if int(parts[row]) != away_ns:
            message = f"waits are {int(parts[row])} ns, it was held or on its way for {away_ns} ns"
            yield SumFault(_HANDOFFS, f"request {request}", message)
    for request, away_ns in left.items():
        message = f"was held or on its way for {away_ns} ns, but waited for nothing"
        yield SumFault(_HANDOFFS, f"request {request}", message)
