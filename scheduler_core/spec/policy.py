"""The policy spec: separate sections, so that a difference between two arms has a layer.

A policy names a preset, which fills all sections; what is written overrides. `scheduler_core.policies.registry`
describes each preset and resolves a spec to its complete form.
"""

from typing import ClassVar, Literal

from pydantic import Field

from scheduler_core.spec.base import Name, PositiveFloat, PositiveInt, Seed, Share, Spec
from scheduler_core.spec.pools import PoolsSection
from scheduler_core.spec.speculative import MOST_DRAFT_TOKENS

OrderName = Literal[
    "arrival",
    "priority",
    "urgency",
    "shortest",
    "shortest_prefill",
    "longest",
    "response_ratio",
    "deadline",
    "levels",
    "longest_prefix",
    "prefix_tree",
]


class OrderSection(Spec):
    """Layer 1, request order: who is served first."""

    by: OrderName | None = Field(
        None,
        description="Who is next: arrival; priority (tier, then arrival); urgency (priority, and takes a slot of a "
        "full batch from a worse request); shortest (least output left, aged); shortest_prefill (shortest prompt, "
        "aged); longest (largest declared output); response_ratio (prompt tokens computed while it waited / its own); "
        "deadline (least slack to the promise of its tier); levels (feedback queues with skip-join); longest_prefix "
        "(most found in the cache); prefix_tree (those with a common prefix together). response_ratio and the last two "
        "keep the order of arrival while more than 128 wait.",
    )
    length: Literal["declared", "predicted", "hidden"] | None = Field(
        None,
        description="What shortest goes by: the declared limit, a prediction (section predict), or, where lengths are "
        "hidden, the fewest tokens emitted so far.",
    )
    preempt_threshold: int | None = Field(
        None,
        ge=0,
        le=2000,
        description="Order priority: a waiting request takes slot and blocks of running ones whose priority number is "
        "larger than its own by more than this; a full queue gives up its worst request to a better newcomer.",
    )
    takes_slots: bool | None = Field(
        None,
        description="Orders shortest and deadline: a full batch gives up the request that is last in the order to one "
        "that is strictly earlier.",
    )
    starvation_ms: float | None = Field(
        None,
        ge=0,
        le=86_400_000,
        description="Who has waited this long comes before everybody, whatever the order; 0: no such bound. Absent: "
        "3,000 for levels, 30,000 for orders without a bound of their own but priority and urgency, else none.",
    )
    age_ms_per_token: PositiveFloat | None = Field(
        None,
        le=10_000,
        description="Orders shortest and shortest_prefill: waiting this long counts as much as one token less. Absent: "
        "10 per output token, 0.1 per prompt token.",
    )
    best_effort_ms: PositiveFloat | None = Field(
        None,
        le=86_400_000,
        description="Order deadline: the promise assumed for a tier that has none on its first token. Absent: 60,000.",
    )
    levels: PositiveInt | None = Field(None, le=24, description="Order levels: how many queues there are.")
    quantum_ms: PositiveFloat | None = Field(
        None,
        le=60_000,
        description="Order levels: execution time before a request sinks from level 0; doubles per level.",
    )
    prefill_us_per_token: PositiveFloat | None = Field(
        None,
        le=1_000_000,
        description="Orders levels and deadline: what a prompt token is estimated to take. Absent: as the target's "
        "profile says, 100 where there is none.",
    )
    age_tokens: int | None = Field(
        None,
        ge=0,
        description="longest_prefix: a request counts this many more tokens found for every step it waited, so that "
        "one with nothing in the cache is not passed for ever. 0: no such bound.",
    )


class TenantQuota(Spec):
    """What one tenant may hold of the pool."""

    share: Share = Field(description="Most KV blocks of its requests at once, as a share of the pool.")


class CacheSection(Spec):
    """Layer 2, cache: where state lives and for how long."""

    blocks: PositiveInt | None = Field(None, description="KV blocks of the pool; absent: as many as the target has.")
    block_size: PositiveInt | None = Field(None, le=1024, description="Tokens per KV block.")
    prefix: Literal["none", "hash", "radix"] | None = Field(
        None,
        description="Reuse of equal prompt beginnings: none; by chained block hashes; or by a radix tree of segments, "
        "which keeps no duplicates and is evicted leaf by leaf.",
    )
    eviction: Literal["lru", "fifo", "lfu", "slru", "aged", "cost"] | None = Field(
        None,
        description="Which cached blocks go first: least recently used; first made; least frequently used; never hit "
        "before ever hit (segmented); least frequent with ageing; or least uses x cost of computing again per size, "
        "aged. fifo and cost need the radix tree.",
    )
    preemption: Literal["recompute", "swap", "keep", "cheapest"] | None = Field(
        None,
        description="A request that has to stop for want of blocks is computed again later; is copied to host memory "
        "and back; waits with the blocks it has until others free some; or whichever of the first two takes less time "
        "by estimate. swap and cheapest need host_blocks.",
    )
    host_blocks: int | None = Field(None, ge=0, description="KV blocks of the pool in host memory. 0: there is none.")
    host_watermark: Share | None = Field(
        None,
        description="Share of host_blocks: with less than that free, requests that have no KV yet do not come in, so "
        "that those who wait with theirs in the host go on first. 0: no such bound.",
    )
    host_prefix_blocks: int | None = Field(
        None,
        ge=0,
        description="KV blocks in host memory for what the prefix cache evicts, least recently used going first. What "
        "is found there is copied back, which takes the link's time. 0: evicted content is gone.",
    )
    clean_low: Share | None = Field(
        None,
        description="Low mark: with fewer blocks clean after a step was planned than this share of the pool, cached "
        "content is evicted ahead of need. 0: only when a block is needed.",
    )
    clean_high: Share | None = Field(
        None, description="High mark: eviction ahead of need goes on until this share is clean. Absent: as clean_low."
    )
    share_samples: bool | None = Field(
        None,
        description="Samples of one prompt (samples of the workload) share its KV blocks: the first one computes the "
        "prompt, the others wait for that and copy the block that they write to (copy on write). No, or absent: each "
        "is a request of its own, which a prefix cache may spare whole blocks.",
    )
    watermark: Share | None = Field(
        None, description="Share of the pool kept free when a waiting request is admitted beside running ones."
    )
    conservativeness: PositiveFloat | None = Field(
        None,
        le=10,
        description="Admission by estimate: how much of their output limit requests are assumed to use at first, as a "
        "multiple of 70 %; higher admits less and stops less.",
    )
    tenant_quota: Share | None = Field(
        None,
        description="Most KV blocks that the requests of one tenant may hold at once, as a share of the pool. Who "
        "would exceed it waits while others go on; who alone would is refused. Absent: no bound.",
    )
    tenant_quotas: dict[Name, TenantQuota] | None = Field(
        None, max_length=64, description="Tenants with a quota of their own, in place of tenant_quota."
    )
    admit: Literal["first_chunk", "known", "predicted", "limit"] | None = Field(
        None,
        description="Room that must be in sight to admit a request: its first chunk; its known tokens (the whole "
        "prompt); prompt + predicted output (section predict); or prompt + output limit (never preempts).",
    )


class BatchSection(Spec):
    """Layer 3, batch and queue: what shares a step."""

    size: PositiveInt | None = Field(None, le=65_536, description="Most requests running at once.")
    token_budget: PositiveInt | None = Field(None, description="Most tokens computed in one step, all phases.")
    prefill_budget: PositiveInt | None = Field(
        None, description="Most prompt tokens computed in one step, all requests together. Absent: as token_budget."
    )
    decode_budget: PositiveInt | None = Field(
        None,
        description="Most requests that decode in one step, those admitted first; the others hold still. Absent: all.",
    )
    chunked_prefill: bool | None = Field(None, description="Whether a prompt may be computed over several steps.")
    long_prefill_cap: int | None = Field(
        None, ge=0, description="Most prompt tokens one request gets in a step while others are there; 0 is no cap."
    )
    max_wait_ms: float | None = Field(
        None, ge=0, description="Static batching: longest wait for a full batch after the oldest arrived."
    )
    input_budget: PositiveInt | None = Field(
        None, description="Most prompt tokens computed in one step, charged by whole blocks; binds without chunks."
    )
    mixed_chunk: bool | None = Field(
        None, description="Whether running requests decode in the step that computes prompts, at the prompts' expense."
    )
    queue_limit: int | None = Field(
        None, ge=0, description="Most waiting requests; newcomers beyond are rejected. 0: none."
    )


class AdmissionSection(Spec):
    """Admission: whether a request comes in when it arrives, when, and as what. Nothing set: everybody queues.

    Watch: rejection_share and timeout_share beside the censored tails (ttft_p99_ms), and goodput_rps. The first of
    reject, degrade, throttle whose trigger is passed counts; each decision is recorded with its inputs.
    """

    throttle_requests_per_s: PositiveFloat | None = Field(
        None, description="Throttle: requests let in per second; the others are held back until it is their turn."
    )
    throttle_tokens_per_s: PositiveFloat | None = Field(
        None, description="Throttle: tokens (prompt + declared output) let in per second."
    )
    throttle_by: Literal["all", "tenant"] | None = Field(
        None, description="Throttle: one bucket for all, or one for each tenant. Absent: all."
    )
    throttle_burst_s: float | None = Field(
        None, ge=0, le=3600, description="Throttle: seconds of unused allowance that may be used at once. Absent: 1."
    )
    reject_wait_ms: PositiveFloat | None = Field(
        None, description="Reject newcomers while the prompts that wait are estimated to take longer than this."
    )
    reject_queued_tokens: PositiveInt | None = Field(
        None,
        description="Reject newcomers while more prompt tokens than this wait; batch.queue_limit counts requests.",
    )
    reject_kv_share: Share | None = Field(
        None,
        description="Reject newcomers while more than this share of the KV blocks is leased; cached is free.",
    )
    degrade_wait_ms: PositiveFloat | None = Field(
        None, description="Degrade newcomers while the prompts that wait are estimated to take longer than this."
    )
    degrade_kv_share: Share | None = Field(
        None, description="Degrade newcomers while more than this share of the KV blocks is leased."
    )
    degrade_output_tokens: PositiveInt | None = Field(
        None, description="Degrade: most output tokens of a degraded request."
    )
    degrade_priority: int | None = Field(
        None, ge=0, le=1000, description="Degrade: added to the priority number of a degraded request: a lower tier."
    )
    degrade_quality: Share | None = Field(
        None,
        description="Degrade: your own score of answers to degraded requests, 1 being as good. It is kept with each of "
        "them and decides nothing; absent: not measured.",
    )


class FeedbackSection(Spec):
    """Feedback: what a policy adapts to the last rounds. Nothing set: nothing, for a comparison of off and on."""

    step_ms: PositiveFloat | None = Field(
        None,
        description="Adaptive chunk: prompt tokens beside decodes shrink by a quarter after a step longer than this, "
        "and grow by a sixteenth of the budget after one that was not.",
    )
    attainment: Share | None = Field(
        None,
        description="Adaptive admission: newcomers are rejected while more requests wait than an allowance, which "
        "shrinks to three quarters of what waited when fewer first tokens than this kept their promise, and grows by a "
        "sixteenth when they did. Needs a tier with ttft_ms.",
    )
    watermark: Share | None = Field(
        None,
        description="Adaptive watermark: blocks kept free when a request is admitted beside running ones double, up to "
        "this share of the pool, after rounds in which requests came back that had lost theirs, and shrink otherwise.",
    )
    window: PositiveInt | None = Field(
        None,
        le=10_000,
        description="attainment and watermark look at this many rounds together, and once in as many. Absent: 64.",
    )
    lag: PositiveInt | None = Field(
        None, le=1000, description="The newest round that may be looked at ended this many rounds ago. Absent: 1."
    )

    @property
    def adapts(self) -> bool:
        """Whether anything looks at the last rounds."""
        return self.step_ms is not None or bool(self.attainment) or bool(self.watermark)


class PredictSection(Spec):
    """Prediction of output lengths, which no policy can see."""

    by: Literal["none", "mean", "quantile", "class", "perfect"] | None = Field(
        None,
        description="none: the declared limit; mean or quantile of the answers that have ended; mean by class; "
        "perfect: the true length, announced from outside, only for study.",
    )
    quantile: Share | None = Field(None, description="Which quantile of the answers that have ended. Absent: 90%.")
    classes: Literal["tenant", "tier", "prompt"] | None = Field(
        None, description="What makes a class: tenant, tier, or the power of two of the prompt length. Absent: tenant."
    )
    sigma: float | None = Field(
        None,
        ge=0,
        le=3,
        description="Error: the prediction is multiplied by a lognormal factor whose logarithm has this standard "
        "deviation, the same factor for the same request whenever it is asked.",
    )
    bias: PositiveFloat | None = Field(None, le=100, description="Error: the prediction is multiplied by this.")
    seed: Seed | None = Field(None, description="Which errors are drawn.")


class ExecutionSection(Spec):
    """Execution of steps: what of host work, copies and communication runs beside computing, and whether drafts are
    checked. Modelled targets only.
    """

    overlap: Literal["none", "pipelined", "two_stream", "schedule_ahead"] | None = Field(
        None,
        description="none: prepare, copy, compute, copy back and finish one after the other. pipelined: the host "
        "finishes a step beside the next one. two_stream: also prepares and copies a step of other requests while one "
        "computes. schedule_ahead: also of the same requests, on the tokens still being computed.",
    )
    dual_batch: Literal["never", "sooner", "always"] | None = Field(
        None,
        description="An instance spread over devices takes a step in two halves, one of which communicates while the "
        "other computes: never; where that ends it sooner; or always, though halves read the weights twice. Absent: "
        "never.",
    )
    draft_tokens: int | None = Field(
        None,
        ge=0,
        le=MOST_DRAFT_TOKENS,
        description="Speculative decoding: tokens drafted for each decoding request and checked in its step, which "
        "counts them against the token budget and needs blocks for them. 0: none. Needs target.modelled.speculative.",
    )


class PolicySpec(Spec):
    """A preset and what differs from it."""

    later_sections: ClassVar[tuple[str, ...]] = ("execution",)

    policy: Name = Field(description="Name of a preset, or of an installed policy.")
    order: OrderSection = OrderSection()
    cache: CacheSection = CacheSection()
    batch: BatchSection = BatchSection()
    predict: PredictSection = PredictSection()
    admission: AdmissionSection = AdmissionSection()
    feedback: FeedbackSection = FeedbackSection()
    pools: PoolsSection = PoolsSection()
    execution: ExecutionSection = ExecutionSection()


LEAVES_ONLY = ("fifo", "cost")
"""Orders of eviction that may rank a beginning before what follows it, so that only the radix tree can use them."""

PREFIX_ORDERS = ("longest_prefix", "prefix_tree")
"""Orders of waiting requests that look at the prefix cache."""

SECTIONS = ("order", "cache", "batch", "predict", "admission", "feedback", "pools", "execution")
