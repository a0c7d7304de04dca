"""Named policies as compositions of parts, and the way from a spec to an instance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, cast

from scheduler_core.kv.rules import SwapRules
from scheduler_core.policies.budgets import with_phase_budgets
from scheduler_core.policies.feedback import with_feedback
from scheduler_core.policies.gatekeeper import with_gate
from scheduler_core.policies.ordering import with_order
from scheduler_core.policies.paged import PagedPrefills, PrefillBudgets, PrefillsWithDecodes
from scheduler_core.policies.parts import (
    ByArrival,
    DecodesThenPrefills,
    FirstMayBeCut,
    KnownTokens,
    LastAdmitted,
    LeastEmitted,
    LeftOfChunk,
    LongPrefillCap,
    Nobody,
    PrefillsAlone,
    PromptsFirst,
    RoomAboveWatermark,
    RunningThenWaiting,
    WholeBatches,
    WholePrompt,
    WholeRequest,
    WorstCase,
)
from scheduler_core.policies.pool import with_memory_rule, with_pool
from scheduler_core.policies.predicting import with_predictor
from scheduler_core.policies.ratio import NewTokenRatio, PromptAndClippedLimit, WorseByThreshold
from scheduler_core.policies.registry import manifest_of
from scheduler_core.policies.resolving import resolve
from scheduler_core.policies.vtc import VirtualTokenCounter
from scheduler_core.sched.decisions import Place, Publish, Retain
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.policy import DEFAULT_PREFILL_TOKEN_NS, Limits, PolicySet
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.overlap import DualBatch, Overlap
from scheduler_core.types.patience import Promise
from scheduler_core.types.time import ns_from_ms

INPUT_TOKENS = 16_384
MOST_SKIPS = 8
"""Splitwise: steps in a row that prompts may leave a decode out of."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a policy is built for.

    ``kv_blocks`` usable KV blocks and ``model_length``, the longest sequence in tokens, are the target's. ``profile``
    says how long its steps and copies take, where that is known; policies may plan by it. ``promises`` are those of the
    workload's tiers.
    """

    kv_blocks: int
    model_length: int
    profile: Profile | None = None
    promises: Mapping[str, Promise] = field(default_factory=dict)


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
    blocks = limits.kv_blocks + 1  # the watermark is a share of all blocks, the null block included (V-12, V-13)
    return PolicySet(
        name="vllm_v1",
        limits=limits,
        order=ByArrival(),
        shape=RunningThenWaiting(),
        chunk=LongPrefillCap(spec.batch.long_prefill_cap) if spec.batch.long_prefill_cap else WholeRequest(),
        reserve=WorstCase() if spec.cache.admit == "limit" else KnownTokens(),
        admission=RoomAboveWatermark(int((spec.cache.watermark or 0) * blocks)),
        victim=LastAdmitted(),
        requeue=Place.FRONT,
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


def splitwise(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Prompts before decodes in one step, each with room for all it can come to: Splitwise's mixed batches (SW-05)."""
    shape = PromptsFirst(MOST_SKIPS)
    return replace(reserve_max(spec, limits), name="splitwise", shape=shape, observers=(shape,))


def sglang(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Prefill-first batches with estimated memory, after SGLang 0.5.23 (G-01 to G-25)."""
    batch, page = spec.batch, limits.block_size
    mixed, chunk = batch.mixed_chunk is True, limits.token_budget if limits.chunked else None
    ratio = NewTokenRatio(page=page, conservativeness=spec.cache.conservativeness or 1.0, mixed=mixed)
    inputs = batch.input_budget or INPUT_TOKENS
    # What bounds a step are the budgets for prompts: decodes are never left out for want of tokens.
    prompts = chunk or max(inputs, limits.model_length)
    step = prompts + limits.size if mixed else max(prompts, limits.size)
    limits = replace(limits, token_budget=step, chunked=True)
    by_priority = spec.order.by == "priority"
    return PolicySet(
        name="sglang",
        limits=limits,
        order=ByArrival(),
        shape=PrefillsWithDecodes() if mixed else PrefillsAlone(),
        chunk=PagedPrefills(PrefillBudgets(page, chunk, inputs, step, mixed)),
        reserve=PromptAndClippedLimit(),
        admission=ratio,
        victim=LeastEmitted(),
        requeue=Place.BACK,
        publish=Publish.AT_CONFIRM,
        watch=ratio,
        slots=WorseByThreshold(spec.order.preempt_threshold or 0, ratio) if by_priority else None,
        displaces=by_priority,
    )


def fastserve(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Feedback queues with skip-join and swap, after FastServe 187a274 (FS-01 to FS-06); `with_order` has the levels.

    As many blocks as the batch is large are kept free for newcomers, at the expense of those who wait only: a pool
    smaller than the batch could serve nobody otherwise.
    """
    swaps = spec.cache.preemption in ("swap", "cheapest")
    return PolicySet(
        name="fastserve",
        limits=limits,
        order=ByArrival(),
        shape=RunningThenWaiting(),
        chunk=WholeRequest(),
        reserve=KnownTokens(),
        admission=RoomAboveWatermark(int((spec.cache.watermark or 0) * limits.kv_blocks)),
        victim=LastAdmitted(),
        requeue=Place.BY_KEY,
        swapping=SwapRules(room=limits.size) if swaps else None,
    )


def vtc(spec: PolicySpec, limits: Limits) -> PolicySet:
    """Fair shares by virtual token counters on continuous batching (VT-01 to VT-05, arXiv 2401.00588)."""
    return replace(vllm_v1(spec, limits), name="vtc", account=VirtualTokenCounter())


def build_policy(spec: PolicySpec, capacity: Capacity) -> PolicySet:
    """The policy of ``spec`` for a target of ``capacity``; `InputError` when it cannot be built."""
    full = resolve(spec)
    module, _, function = manifest_of(full.policy).builder.partition(":")
    builder = cast(Callable[[PolicySpec, Limits], PolicySet], getattr(import_module(module), function))
    policy = with_predictor(builder(full, _limits(full, capacity)), full)
    for add in (with_memory_rule, with_order, with_phase_budgets, with_gate, with_feedback):
        policy = add(policy, full)
    return with_pool(policy, full, capacity.profile)


def build_instance(spec: PolicySpec, capacity: Capacity) -> Instance:
    """An instance that schedules by ``spec``; ``cache.blocks`` may lower the pool, never raise it."""
    overlap = overlap_of(spec)
    return Instance(
        build_policy(spec, capacity), depth=overlap.steps_in_flight, plan_on_promises=overlap.plans_on_promises
    )


_ORDERING = (
    "order", "arrange", "victim", "slots", "requeue", "account", "watch", "starvation_ns", "predictor", "observers",
    "gate",
)  # fmt: skip


def branch_of(running: PolicySet, trunk: PolicySpec, branch: PolicySpec, capacity: Capacity) -> PolicySet:
    """The policy of ``branch`` for an instance that runs by ``running``, built from ``trunk``.

    Parts that decide about order and entry and have learned from what happened go on while no setting of theirs
    changes; others begin anew, and so do all with a part that adapts to the last rounds.
    """
    old, new = resolve(trunk), resolve(branch)
    if old == new:
        return running
    built = build_policy(branch, capacity)
    if new.feedback.adapts or any(
        getattr(old, section) != getattr(new, section) for section in SECTIONS if section not in ("cache", "batch")
    ):
        return built
    kept: dict[str, Any] = {name: getattr(running, name) for name in _ORDERING}
    if old.cache.admit == new.cache.admit:
        kept["reserve"] = running.reserve
    if cast(object, running.admission) is running.watch:
        kept["admission"] = running.admission
    kept["observers"] = tuple(
        built.shape if cast(object, item) is running.shape else item for item in running.observers
    )
    return replace(built, **kept)


def overlap_of(spec: PolicySpec) -> Overlap:
    """What may run beside a computing step under ``spec``."""
    return Overlap(resolve(spec).execution.overlap or Overlap.NONE)


def dual_batch_of(spec: PolicySpec) -> DualBatch:
    """When steps of a parallel instance are taken in halves under ``spec``."""
    return DualBatch(resolve(spec).execution.dual_batch or DualBatch.NEVER)


def _limits(spec: PolicySpec, capacity: Capacity) -> Limits:
    numbers = {
        "batch.size": spec.batch.size,
        "batch.token_budget": spec.batch.token_budget,
        "cache.block_size": spec.cache.block_size,
    }
    profile = capacity.profile
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
        draft_tokens=spec.execution.draft_tokens or 0,
        promises=capacity.promises,
        prefill_token_ns=profile.cost.prefill_token_ns if profile else DEFAULT_PREFILL_TOKEN_NS,
    )
