"""Where the parts of steps lie in time: resources that work side by side, and who waits for whom."""

from typing import NamedTuple

from scheduler_core.sim.cost import StepParts
from scheduler_core.types.intervals import (
    COMPUTE,
    COPY,
    COPY_IN,
    COPY_OUT,
    DEVICE,
    FINISHER,
    HOST,
    LINK,
    IntervalClass,
    Lane,
)
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.time import Ns


class Placed(NamedTuple):
    """A step in time: its lanes, when its result is known to the scheduler, and when its tokens can be read."""

    lanes: tuple[Lane, ...]
    known_ns: Ns
    available_ns: Ns


class Lanes:
    """Places steps in launch order; each part starts when the part before it and the step before let it.

    A wait for a resource that still works for another step is a lane of its own (``stalled``).

    Which resources a step's parts share, by mode::

        mode            prepare  copy in  compute  copy out  finish     the next step is prepared
        none            one after the other, nothing beside anything    after finish
        pipelined       host     |--- one stream ---------|  finisher   after copy out
        two_stream      host     copies   device   copies    finisher   beside compute, for other requests
        schedule_ahead  host     copies   device   copies    finisher   beside compute, for the same ones too

    Copies in and out have an engine each, and so have those of blocks to and from the host pool, which come right
    before the compute. Of a parallel instance an average device's work, waits and communication lie one after the
    other, as if each were done in one piece, and hidden communication beside the work. When the next step may be
    planned at all is the driver's and the instance's part (`types.overlap`).
    """

    def __init__(self, overlap: Overlap) -> None:
        self._overlap = overlap
        self._free: dict[str, Ns] = dict.fromkeys((HOST, COPY_IN, COPY, DEVICE, COPY_OUT, FINISHER), 0)

    def place(self, now_ns: Ns, parts: StepParts) -> Placed:
        """Place a step planned at ``now_ns``."""
        if self._overlap is Overlap.NONE:
            return _serial(now_ns, parts)
        placed: list[Lane] = []
        at = now_ns
        one_stream = self._overlap is Overlap.PIPELINED
        for kind, resource, length in _in_order(parts):
            engine = DEVICE if one_stream and resource in (COPY_IN, COPY, COPY_OUT) else resource
            start = max(at, self._free[engine]) if length else at
            if start > at:
                placed.append(Lane(IntervalClass.STALLED, f"waiting for {engine}", at, start))
            at = start + length
            if length:
                self._free[engine] = at
                placed += _lanes(kind, resource, start, at, parts)
            if resource == COPY_OUT:
                known = at
        return Placed(tuple(placed), known, max(at, self._free[FINISHER]))


def _serial(now_ns: Ns, parts: StepParts) -> Placed:
    lanes, at = [], now_ns
    for kind, resource, length in _in_order(parts):
        if length:
            lanes += _lanes(kind, resource, at, at + length, parts)
            at += length
    return Placed(tuple(lanes), at, at)


def _lanes(kind: str, resource: str, start: Ns, end: Ns, parts: StepParts) -> list[Lane]:
    """One lane; that of a parallel instance's devices is several."""
    spread = parts.spread
    if kind != COMPUTE or spread is None:
        return [Lane(kind, resource, start, end)]
    waits = end - spread.exposed_ns - spread.waits_ns
    told = end - spread.exposed_ns
    lanes = (
        Lane(COMPUTE, DEVICE, start, waits),
        Lane(IntervalClass.COMMUNICATION.value, LINK, start, start + spread.hidden_ns),
        Lane(IntervalClass.SYNC_WAIT.value, DEVICE, waits, told),
        Lane(IntervalClass.COMMUNICATION.value, LINK, told, end),
    )
    return [lane for lane in lanes if lane.end_ns > lane.start_ns or lane.kind == COMPUTE]


def _in_order(parts: StepParts) -> tuple[tuple[str, str, Ns], ...]:
    return (
        (IntervalClass.INPUT_PREPARE.value, HOST, parts.prepare_ns),
        (IntervalClass.INPUT_TRANSFER.value, COPY_IN, parts.copy_in_ns),
        (IntervalClass.SWAP.value, COPY, parts.swap_ns),
        (COMPUTE, DEVICE, parts.device_ns),
        (IntervalClass.OUTPUT_TRANSFER.value, COPY_OUT, parts.copy_out_ns),
        (IntervalClass.STREAM_OUTPUT.value, FINISHER, parts.finish_ns),
    )
