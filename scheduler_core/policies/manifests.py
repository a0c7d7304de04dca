"""What each policy is and takes, as pure description: forms, API and command line read this, never the planner."""

from dataclasses import dataclass, field
from typing import Any

from scheduler_core.spec.policy import ExecutionSection, PolicySpec
from scheduler_core.spec.pools import PoolsSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A policy for people: ``settable`` maps each dotted setting that applies to its help text, ``choices`` names the
    only words it takes where those are fewer than the setting has.

    ``defaults`` fills every setting that has a default; ``builder`` names the function that composes the policy, as
    ``module:function``, and is imported only by whoever runs it.
    """

    name: str
    version: str
    title: str
    summary: str
    citation: str
    defaults: PolicySpec
    settable: dict[str, str]
    builder: str
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def canonical(self) -> dict[str, Any]:
        """As plain data: what it is, its settings with help texts, its defaults."""
        return {
            "name": self.name,
            "version": self.version,
            "title": self.title,
            "summary": self.summary,
            "citation": self.citation,
            "defaults": self.defaults.canonical(),
            "settable": dict(self.settable),
        }


def described(section: str, *settings: str) -> dict[str, str]:
    """The settings of a section with the help texts of the spec; by default all of them."""
    fields = type(getattr(PolicySpec(policy="any"), section)).model_fields
    return {f"{section}.{name}": fields[name].description or "" for name in settings or fields}


_POOL = {
    "cache.blocks": "KV blocks of the pool. Absent: as many as the target has.",
    "cache.block_size": "Tokens per KV block.",
    "cache.prefix": "Reuse of equal prompt beginnings: none, hash (chained block identities), or radix (a tree of "
    "segments without duplicates, filled after each prefill step and at the end, evicted leaf by leaf).",
    "cache.eviction": "Which cached blocks go first: lru, fifo, lfu, slru (never hit goes first), aged (lfu with "
    "ageing), cost (uses x cost of computing again per size). fifo and cost need prefix radix.",
    "cache.host_blocks": "KV blocks of the pool in host memory, for requests that are swapped out. 0: none.",
    **described(
        "cache", "host_prefix_blocks", "clean_low", "clean_high", "tenant_quota", "tenant_quotas", "share_samples"
    ),
    **{f"pools.{name}": str(field.description) for name, field in PoolsSection.model_fields.items()},
    **{f"execution.{name}": str(field.description) for name, field in ExecutionSection.model_fields.items()},
}
_POOLS: dict[str, Any] = {
    "layout": "single",
    "route": "least_loaded",
    "handoff": "transfer",
    "broken": "recompute",
    "reserve": "ready",
    "move": "after",
    "look_every_ms": 0,
    "first_token": "prefill",
    "refuse": "never",
    "on_death": "recompute",
    "notice_ms": 1000.0,
    "accept_share": 1.0,
    "headroom_tokens": 0,
    "prefix_weight": 1.0,
}
_PREEMPTS = {
    "cache.preemption": "A request that has to stop for want of blocks: recompute; swap (copied to host memory and "
    "back); keep (waits with the blocks it has); cheapest (recompute or swap, by estimated time). swap and cheapest "
    "need host_blocks.",
}
_QUEUE = {
    **described("admission"),
    "batch.size": "Most requests running at once.",
    "batch.token_budget": "Most tokens computed in one step, prefill and decode together.",
    "batch.queue_limit": "Most waiting requests; newcomers beyond are rejected. 0: none.",
}

_ORDER = {name: text for name, text in described("order").items() if name != "order.preempt_threshold"}

STATIC = Manifest(
    name="static",
    version="1",
    title="Static batching",
    summary="Forms a batch when idle, prefills it together, decodes it until its last member ends; nobody joins.",
    citation="Headway's reference, rules ST-01 to ST-04.",
    defaults=PolicySpec.model_validate(
        {
            "policy": "static",
            "order": {"by": "arrival"},
            "cache": {"block_size": 16, "prefix": "none", "eviction": "lru", "host_blocks": 0, "admit": "limit"},
            "batch": {"size": 8, "token_budget": 8192, "chunked_prefill": True, "max_wait_ms": 0, "queue_limit": 0},
            "pools": _POOLS,
            "execution": {"overlap": "none"},
        }
    ),
    settable={
        **{name: text for name, text in _POOL.items() if name != "cache.share_samples"},  # nobody joins a batch later
        **_QUEUE,
        "batch.size": "Requests in a batch.",
        "batch.max_wait_ms": "Longest wait for a full batch after its oldest request arrived. 0: start at once.",
    },
    builder="scheduler_core.policies.presets:static",
)

_CACHE = {
    "block_size": 16,
    "prefix": "none",
    "eviction": "lru",
    "preemption": "recompute",
    "host_blocks": 0,
    "admit": "known",
}

VLLM_V1 = Manifest(
    name="vllm_v1",
    version="0.33.0",
    title="Continuous batching as vLLM V1",
    summary="Requests join and leave at every step; prompts are computed in chunks beside decodes; paged KV blocks, "
    "preemption by recomputation, prefix cache.",
    citation="vLLM 0.33.0, v1/core/sched; rules V-01 to V-30.",
    defaults=PolicySpec.model_validate(
        {
            "policy": "vllm_v1",
            "order": {"by": "arrival", "age_tokens": 256},
            "cache": {**_CACHE, "prefix": "hash", "watermark": 0},
            "batch": {
                "size": 64,
                "token_budget": 2048,
                "chunked_prefill": True,
                "long_prefill_cap": 0,
                "queue_limit": 0,
            },
            "pools": _POOLS,
            "execution": {"overlap": "none"},
        }
    ),
    settable={
        **_ORDER,
        **_POOL,
        **_PREEMPTS,
        **described("cache", "watermark", "admit"),
        **_QUEUE,
        **described("predict"),
        **described("feedback"),
        **described("batch", "prefill_budget", "decode_budget"),
        "batch.chunked_prefill": "Whether a prompt may be computed over several steps.",
        "batch.long_prefill_cap": "Most prompt tokens a request gets in a step while others are there. 0: no cap.",
    },
    builder="scheduler_core.policies.presets:vllm_v1",
)


def _defaults(
    policy: str, *, cache: dict[str, Any], batch: dict[str, Any], order: dict[str, Any] | None = None
) -> PolicySpec:
    return PolicySpec.model_validate(
        {
            "policy": policy,
            "order": order or {"by": "arrival", "age_tokens": 256},
            "cache": {**_CACHE, **cache},
            "batch": {"size": 64, "token_budget": 2048, "chunked_prefill": True, "queue_limit": 0, **batch},
            "pools": _POOLS,
            "execution": {"overlap": "none"},
        }
    )


_PREFIX = tuple(f"cache.{name}" for name in ("prefix", "eviction", "host_prefix_blocks", "clean_low", "clean_high"))
_UNCACHED = {name: text for name, text in _POOL.items() if name not in _PREFIX}

SARATHI = Manifest(
    name="sarathi",
    version="96f9911",
    title="Stall-free batching as Sarathi-Serve",
    summary="Every decode gets its token first; prompt chunks fill what is left of the step, so decodes never stall.",
    citation="Sarathi-Serve 96f9911, arXiv 2403.02310; rules SA-01 to SA-06.",
    defaults=_defaults("sarathi", cache={"watermark": 0.01}, batch={"token_budget": 512}),
    settable={
        **_ORDER,
        **_UNCACHED,
        **_PREEMPTS,
        **_QUEUE,
        **described("predict"),
        "batch.token_budget": "Chunk size: most tokens of a step, unless more requests than that decode.",
        "cache.watermark": "Share of the pool kept free when a request is admitted beside running ones.",
    },
    builder="scheduler_core.policies.presets:sarathi",
)

NANO = Manifest(
    name="nano",
    version="bb823b3",
    title="Prefill-exclusive batching as nano-vllm",
    summary="A step either prefills or decodes; only the first prompt of a batch may be cut; tail preemption.",
    citation="nano-vllm bb823b3.",
    defaults=_defaults("nano", cache={"prefix": "hash"}, batch={}),
    settable={**_POOL, **_PREEMPTS, **_QUEUE},
    builder="scheduler_core.policies.presets:nano",
)

RESERVE_MAX = Manifest(
    name="reserve_max",
    version="20fcd7f",
    title="Full reservation as mini-sglang",
    summary="Admits a request only with room for its whole output limit, so nobody is ever preempted.",
    citation="mini-sglang 20fcd7f.",
    defaults=_defaults("reserve_max", cache={"prefix": "radix", "admit": "limit"}, batch={}),
    settable={**_POOL, **_QUEUE},
    builder="scheduler_core.policies.presets:reserve_max",
)

SGLANG = Manifest(
    name="sglang",
    version="0.5.23+2",
    title="Prefill-first batching as SGLang",
    summary="Prefills whenever it can, admits by an estimate of what running requests will still use, retracts the "
    "least advanced when that was too little.",
    citation="SGLang 0.5.23; rules G-01 to G-25.",
    defaults=_defaults(
        "sglang",
        order={"by": "arrival", "age_tokens": 256, "preempt_threshold": 10},
        cache={"prefix": "radix", "conservativeness": 1.0},
        batch={"token_budget": 8192, "input_budget": 16_384, "mixed_chunk": False},
    ),
    settable={
        **described("order"),
        **_POOL,
        **_PREEMPTS,
        **described("cache", "conservativeness"),
        **_QUEUE,
        **described("predict"),
        **described("batch", "input_budget", "mixed_chunk"),
        "batch.token_budget": "Most prompt tokens computed in one step, charged by whole blocks.",
        "batch.chunked_prefill": "Whether a prompt may be computed over several steps; if not, the first one of a step "
        "may exceed input_budget.",
    },
    choices={
        "order.by": (
            "arrival",
            "priority",
            "longest_prefix",
            "prefix_tree",
            "response_ratio",
            "shortest_prefill",
            "longest",
        )
    },
    builder="scheduler_core.policies.presets:sglang",
)

VTC = Manifest(
    name="vtc",
    version="192c2e2",
    title="Fair shares per tenant by virtual token counters",
    summary="The tenant that was served least so far comes next; idle time earns no credit. Batches as vllm_v1.",
    citation="VTC artefact 192c2e2, arXiv 2401.00588; rules VT-01 to VT-06.",
    defaults=VLLM_V1.defaults.model_copy(update={"policy": "vtc"}),
    settable={name: text for name, text in VLLM_V1.settable.items() if not name.startswith("order.")},
    builder="scheduler_core.policies.presets:vtc",
)

# What a server was started with elsewhere: nothing to build and nothing to set, so no part of `manifests`.
AS_SERVED = Manifest(
    name="as_served",
    version="1",
    title="As the server was started",
    summary="Whatever the flags of a server target say; its settings are read back and stored with each run.",
    citation="The server's own.",
    defaults=PolicySpec(policy="as_served"),
    settable={},
    builder="",
)

FASTSERVE = Manifest(
    name="fastserve",
    version="187a274+1",
    title="Feedback queues with skip-join as FastServe",
    summary="Serves short answers first without knowing lengths: a request sinks a level with each quantum it uses, a "
    "long prompt joins lower down, and running requests of low levels give way to waiting ones of higher levels; what "
    "they have computed is kept, on the device or in the host.",
    citation="FastServe 187a274, arXiv 2305.05920; rules FS-01 to FS-06, with a prompt computed in chunks where the "
    "budget is short.",
    defaults=_defaults(
        "fastserve",
        order={"by": "levels", "levels": 6, "quantum_ms": 10, "starvation_ms": 3000},
        cache={"watermark": 0.0, "preemption": "swap", "host_blocks": 2048, "host_watermark": 0.1},
        batch={},
    ),
    settable={
        **described("order", "levels", "quantum_ms", "starvation_ms", "prefill_us_per_token"),
        **_UNCACHED,
        "cache.preemption": "A request that lost its slot and then has to give up its blocks: swap (copied to host "
        "memory and back, also ahead of need); cheapest (swap or recompute, by estimated time); recompute (as it loses "
        "its slot). swap and cheapest need host_blocks.",
        **described("cache", "host_watermark"),
        **described("cache", "watermark"),
        **_QUEUE,
        **described("batch", "prefill_budget", "decode_budget"),
        "batch.chunked_prefill": "Whether a prompt may be computed over several steps.",
    },
    choices={"cache.preemption": ("recompute", "swap", "cheapest")},
    builder="scheduler_core.policies.presets:fastserve",
)
