"""Deployments of named systems as presets: which instance does what, how KV goes from one to another, who routes.

Inside an instance each schedules by the parts of the policy that its system uses there. Where the first token comes
from is part of a preset (``pools.first_token``), since it decides what a time to first token means.
"""

from dataclasses import replace
from typing import Any

from scheduler_core.policies.manifests import NANO, RESERVE_MAX, SGLANG, VLLM_V1, Manifest

_SPLIT = {"layout": "split", "prefill": ("prefill",)}


def _deployment(name: str, inside: Manifest, pools: dict[str, Any], **about: str) -> Manifest:
    """A preset that schedules ``inside`` each instance by an existing one, and lays instances out by ``pools``."""
    defaults = inside.defaults
    laid_out = defaults.pools.model_validate({**defaults.pools.model_dump(), **pools})
    return Manifest(
        name=name,
        defaults=defaults.model_copy(update={"policy": name, "pools": laid_out}),
        settable=inside.settable,
        choices=inside.choices,
        builder=inside.builder,
        **about,
    )


VLLM_PD = _deployment(
    "vllm_pd",
    VLLM_V1,
    {**_SPLIT, "route": "round_robin", "first_token": "decode", "broken": "fail"},
    version="0.33.0",
    title="Prefill and decode apart as vLLM with a KV connector",
    summary="Decode instances pull the KV of a computed prompt, compute its last token again and with it the first "
    "token; blocks stay at the producer until the send is complete; a failed load fails the request.",
    citation="vLLM 0.33.0, KV connectors behind a proxy; rules V-31 to V-34. First token: the first decode step.",
)

SGLANG_PD = _deployment(
    "sglang_pd",
    SGLANG,
    {
        **_SPLIT,
        "route": "two_choices",
        "first_token": "arrival",
        "broken": "fail",
        "reserve": "before",
        "move": "chunks",
        "headroom_tokens": 512,
        "retracted_first": True,
    },
    version="0.5.23+1",
    title="Prefill and decode apart as SGLang",
    summary="A prompt is computed only once its decode instance has kept room, and sent chunk by chunk; room for 512 "
    "tokens stays free there for each request.",
    citation="SGLang 0.5.23, disaggregation; rules PD-01 to PD-07; what is retracted is computed again, or copied to "
    "the host and back (cache.preemption: swap with host_blocks); leases as pools.lease_ms says. First token: computed "
    "by prefill, emitted when the KV has arrived.",
)

DISTSERVE = _deployment(
    "distserve",
    NANO,
    {**_SPLIT, "route": "least_loaded", "first_token": "prefill", "accept_share": 0.05},
    version="82831f1",
    title="Prefill and decode apart as DistServe",
    summary="The prefill pool is the queue: decode instances pull computed prompts strictly in order, and only while "
    "prompts that wait there hold less than 5% of their blocks.",
    citation="DistServe 82831f1, arXiv 2401.09670; rules DS-01, DS-02, DS-04, and DS-03 with recomputation for "
    "swapping (cache.preemption: swap with host_blocks). First token: prefill.",
)

_PROMPTS_FIRST = replace(
    RESERVE_MAX,
    builder="scheduler_core.policies.presets:splitwise",
    defaults=RESERVE_MAX.defaults.model_copy(
        update={"cache": RESERVE_MAX.defaults.cache.model_copy(update={"prefix": "none"})}
    ),
)

SPLITWISE = _deployment(
    "splitwise",
    _PROMPTS_FIRST,
    {
        **_SPLIT,
        "route": "fewest_tokens",
        "first_token": "prefill",
        "reserve": "arrival",
        "move": "layers",
        "stream_tokens": 512,
        "borrow_tokens": 8192,
    },
    version="2023.11",
    title="Prefill and decode apart with a mixed pool as Splitwise",
    summary="Both places of a request are chosen on arrival; a pool that is full borrows an instance of the other one, "
    "which does both until it is idle; large prompts are sent layer by layer while they are computed.",
    citation="Splitwise, arXiv 2311.18677; rules SW-01 to SW-05, with bounds of our own where the text has none (512 "
    "tokens to stream, 8,192 in a queue, 8 steps to be left out of). First token: prefill.",
)

MOONCAKE = _deployment(
    "mooncake",
    VLLM_V1,
    {
        **_SPLIT,
        "route": "first_token",
        "prefix_fetch_ratio": 4.0,
        "refuse": "promise",
        "first_token": "prefill",
        "reserve": "arrival",
        "move": "chunks",
    },
    version="3b5a594+1",
    title="KV-centred scheduling as Mooncake",
    summary="A prompt goes where its first token is predicted soonest with what is cached there, or is fetched from "
    "where much more of it is; what is predicted to miss the promise of its tier, by the load that decoding will have "
    "then, is refused on arrival.",
    citation="Mooncake 3b5a594, arXiv 2407.00079; rules MK-01 to MK-05, with a bound of our own (4 times) from "
    "which on a beginning is fetched. First token: prefill.",
)

KV_ROUTER = _deployment(
    "kv_router",
    VLLM_V1,
    {"layout": "replicas", "route": "kv_cost", "prefix_weight": 1.0},
    version="1",
    title="Replicas behind a KV-aware router",
    summary="A request goes where the prompt tokens to compute and the KV tokens held add up to least.",
    citation="The cost function of routers as Dynamo and llm-d ship them. First token: the instance itself.",
)

LLUMNIX = _deployment(
    "llumnix",
    VLLM_V1,
    {"layout": "replicas", "route": "freest", "migrate": {}},
    version="24220fb",
    title="Replicas with live migration as Llumnix",
    summary="A request goes where most KV is free per request; running ones move from instances above a load to those "
    "below while they decode, and are stopped only for the last blocks.",
    citation="Llumnix 24220fb, arXiv 2406.03243; rules LX-01 to LX-06, with headroom for priorities as "
    "pools.urgent_headroom_tokens says. First token: the instance itself.",
)

DEPLOYMENTS = (VLLM_PD, SGLANG_PD, DISTSERVE, SPLITWISE, MOONCAKE, LLUMNIX, KV_ROUTER)
