"""Named policies as compositions of parts, and the way from a spec to an instance."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import cast

from scheduler_core.policies.manifests import manifest_of, resolve
from scheduler_core.policies.parts import (
    ByArrival,
    ByPriority,
    ByShortestOutput,
    DecodesThenPrefills,
    FirstMayBeCut,
    KnownTokens,
    LastAdmitted,
    LeastEmitted,
    LeftOfChunk,
    LongPrefillCap,
    Nobody,
    PrefillsAlone,
    RoomAboveWatermark,
    RunningThenWaiting,
    UrgentTakesSlot,
    WholeBatches,
    WholePages,
    WholePrompt,
    WholeRequest,
    WorstCase,
    WorstPriority,
)
from scheduler_core.policies.pool import with_pool, with_prefix_order
from scheduler_core.policies.ratio import NewTokenRatio, PromptAndClippedLimit
from scheduler_core.policies.vtc import VirtualTokenCounter
from scheduler_core.sched.decisions import Place, Publish, Retain
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.policy import Limits, Order, PolicySet
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.time import ns_from_ms


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the target offers: usable KV blocks, and the longest sequence of its model in tokens.

    ``profile`` says how long its steps and copies take, where that is known; policies may plan by it.
    """

    kv_blocks: int
    model_length: int
    profile: Profile | None = None


def static(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Static batching, the reference (ST-01 to ST-04)."""
    return PolicySet(
        name="static",
        limits=limits,
        order=ByArrival(),
        shape=WholeBatches(limits.size, ns_from_ms(spec.batch.max_wait_ms or 0)),
        chunk=WholeRequest(),
        reserve=WorstCase(),
        admission=RoomAboveWatermark(),
        victim=Nobody(),
        requeue=Place.FRONT,
        retain=Retain.BATCH,
        admits_without_budget=True,
    )


def vllm_v1(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Continuous batching with chunked prefill and paged KV, after vLLM 0.33.0 (V-01 to V-30, one instance)."""
    by_priority = spec.order.by in ("priority", "urgency")
    blocks = limits.kv_blocks + 1  # the watermark is a share of all blocks, the null block included (V-12, V-13)
    orders: dict[str | None, Order] = {"arrival": ByArrival(), "shortest": ByShortestOutput()}
    return PolicySet(
        name="vllm_v1",
        limits=limits,
        order=ByPriority() if by_priority else orders.get(spec.order.by, ByArrival()),
        shape=RunningThenWaiting(),
        chunk=LongPrefillCap(spec.batch.long_prefill_cap) if spec.batch.long_prefill_cap else WholeRequest(),
        reserve=WorstCase() if spec.cache.admit == "limit" else KnownTokens(),
        admission=RoomAboveWatermark(int((spec.cache.watermark or 0) * blocks)),
        victim=WorstPriority() if by_priority else LastAdmitted(),
        requeue=Place.FRONT if spec.order.by == "arrival" else Place.BY_KEY,
        slots=UrgentTakesSlot() if spec.order.by == "urgency" else None,
    )


def sarathi(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Stall-free batching, after Sarathi-Serve (SA-01 to SA-06); ``token_budget`` is its chunk size."""
    chunk = limits.token_budget
    limits = replace(limits, token_budget=max(chunk, limits.size))  # decodes may exceed the chunk (SA-05)
    return PolicySet(
        name="sarathi",
        limits=limits,
        order=ByArrival(),
        shape=DecodesThenPrefills(),
        chunk=LeftOfChunk(chunk, limits.token_budget),
        reserve=WholePrompt(),
        admission=RoomAboveWatermark(int((spec.cache.watermark or 0) * limits.kv_blocks)),
        victim=LastAdmitted(),
        requeue=Place.FRONT,
    )


def nano(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Prefill-exclusive batches as nano-vllm at bb823b3: only the first of a batch may be cut, tail preemption."""
    return PolicySet(
        name="nano",
        limits=limits,
        order=ByArrival(),
        shape=PrefillsAlone(),
        chunk=FirstMayBeCut(limits.token_budget),
        reserve=KnownTokens(),
        admission=RoomAboveWatermark(),
        victim=LastAdmitted(),
        requeue=Place.FRONT,
        publish=Publish.AT_CONFIRM,
    )


def reserve_max(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Room for prompt and whole limit is kept, nobody is ever preempted: mini-sglang at 20fcd7f."""
    return PolicySet(
        name="reserve_max",
        limits=limits,
        order=ByArrival(),
        shape=PrefillsAlone(),
        chunk=WholeRequest(),
        reserve=WorstCase(),
        admission=RoomAboveWatermark(),
        victim=Nobody(),
        requeue=Place.FRONT,
        publish=Publish.AT_CONFIRM,
    )


def sglang(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Prefill-first batches with estimated memory, after SGLang 0.5.23 (G-01, G-08, G-09, G-12, G-16 to G-25)."""
    ratio = NewTokenRatio(page=limits.block_size)
    return PolicySet(
        name="sglang",
        limits=limits,
        order=ByArrival(),
        shape=PrefillsAlone(),
        chunk=WholePages(limits.block_size),
        reserve=PromptAndClippedLimit(),
        admission=ratio,
        victim=LeastEmitted(),
        requeue=Place.BACK,
        publish=Publish.AT_CONFIRM,
        watch=ratio,
    )


def vtc(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Fair shares by virtual token counters on continuous batching (VT-01 to VT-05, arXiv 2401.00588)."""
    return replace(vllm_v1(spec, limits), name="vtc", account=VirtualTokenCounter())


def build_policy(spec: PolicySpec, capacity: Capacity) -> PolicySet:
    """The policy of ``spec`` for a target of ``capacity``; `InputError` when it cannot be built."""
    full = resolve(spec)
    module, _, function = manifest_of(full.policy).builder.partition(":")
    builder = cast(Callable[[PolicySpec, Limits], PolicySet], getattr(import_module(module), function))
    return with_pool(with_prefix_order(builder(full, _limits(full, capacity)), full), full, capacity.profile)


def build_instance(spec: PolicySpec, capacity: Capacity) -> Instance:
    """An instance that schedules by ``spec``; ``cache.blocks`` may lower the pool, never raise it."""
    overlap = overlap_of(spec)
    return Instance(
        build_policy(spec, capacity), depth=overlap.steps_in_flight, plan_on_promises=overlap.plans_on_promises
    )


def overlap_of(spec: PolicySpec) -> Overlap:
    """What may run beside a computing step under ``spec``."""
    return Overlap(resolve(spec).execution.overlap or Overlap.NONE)


def _limits(spec: PolicySpec, capacity: Capacity) -> Limits:
    numbers = {
        "batch.size": spec.batch.size,
        "batch.token_budget": spec.batch.token_budget,
        "cache.block_size": spec.cache.block_size,
    }
    missing = [Problem(where, "is missing, and the policy has no default") for where, n in numbers.items() if n is None]
    if missing:
        raise InputError(missing)
    return Limits(
        size=numbers["batch.size"] or 1,
        token_budget=numbers["batch.token_budget"] or 1,
        block_size=numbers["cache.block_size"] or 1,
        kv_blocks=min(spec.cache.blocks or capacity.kv_blocks, capacity.kv_blocks),
        model_length=capacity.model_length,
        chunked=spec.batch.chunked_prefill is not False,
        queue_limit=spec.batch.queue_limit or 0,
    )
