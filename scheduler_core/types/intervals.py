"""Intervals: the only thing an executor reports about time; every figure is computed from them."""

from enum import StrEnum
from typing import NamedTuple

from scheduler_core.types.time import Ns


class IntervalClass(StrEnum):
    """What an interval was spent on. Overlap is a property of two intervals, never a class.

    ``swap`` is the copying of a step's blocks between device and host (`types.plan.StepPlan`), on resource ``copy``.
    ``sync_wait`` is what devices of a parallel instance wait for each other (`types.spread.Spread`).
    """

    QUEUE = "queue"
    INPUT_PREPARE = "input_prepare"
    INPUT_TRANSFER = "input_transfer"
    COMPUTE_PREFILL = "compute_prefill"
    COMPUTE_DECODE = "compute_decode"
    RECOMPUTE = "recompute"
    SWAP = "swap"
    HANDOFF = "handoff"
    NETWORK_WAIT = "network_wait"
    COMMUNICATION = "communication"
    SYNC_WAIT = "sync_wait"
    RESERVE_WAIT = "reserve_wait"
    DECODE_QUEUE = "decode_queue"
    STALLED = "stalled"
    PAUSED = "paused"
    OUTPUT_TRANSFER = "output_transfer"
    STREAM_OUTPUT = "stream_output"
    MODEL_LOAD = "model_load"
    HOST_GAP = "host_gap"


class Lane(NamedTuple):
    """One stretch of work of a step on one resource, ``[start_ns, end_ns)`` on the run's reference clock.

    ``kind`` is ``compute`` for the model's forward (each grant says whether it was prefill, decode or recompute for
    its request) or the value of an `IntervalClass`.
    """

    kind: str
    resource: str
    start_ns: Ns
    end_ns: Ns


COMPUTE = "compute"
DEVICE_KINDS = (COMPUTE, IntervalClass.COMMUNICATION.value, IntervalClass.SYNC_WAIT.value)
"""Lanes of a step that are its forward: computing, and for a parallel instance telling and waiting in between."""
HOST = "host"
FINISHER = "host finisher"
COPY_IN = "copy in"
COPY_OUT = "copy out"
DEVICE = "device"
COPY = "copy"
LINK = "device link"
