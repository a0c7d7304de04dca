"""Step costs from public specifications: a roofline with separate compute-bound and bandwidth-bound terms.

Named ``MODEL@DEVICE`` or ``MODEL@DEVICExN`` for N devices in tensor parallel, such as ``llama-3.1-70b@h100x4``. What is
counted, per step (Williams et al., "Roofline", CACM 2009, applied to each part of a decoder's step on its own):

* matrix products: the larger of 2 operations per weight and token at the reachable rate, and the bytes of the weights
  read once per step at the reachable bandwidth; of routed experts those that the step's tokens are expected to touch
* the output head for each decoding request
* prefill attention: operations per (query, key) pair, compute-bound
* decode attention: per kept token the larger of its bytes and its operations; latent attention keeps one vector
* what devices of one instance tell each other: `scheduler_core.spec.sharding`
"""

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from scheduler_core.spec.devices import DEVICES, Device
from scheduler_core.spec.models import MODELS, Model
from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.sharding import (
    BLOCK_SIZE,
    expert_time,
    kv_blocks,
    kv_shards,
    parallel_time,
    problems,
    weight_bytes,
)
from scheduler_core.spec.target import Affine, HostLink, HostTime, Knots, Profile
from scheduler_core.types.errors import InputError, Problem

# What well-tuned kernels reach of the peaks, and what a step costs beside them: assumptions, stated in each profile.
COMPUTE_SHARE = 0.70
BANDWIDTH_SHARE = 0.80
LAYER_NS = 10_000
HOST_NS = 500_000
HOST_REQUEST_NS = 5_000
STATED_ERROR_SHARE = 0.25
MOST_NAMED = 64

KnownT = TypeVar("KnownT", Model, Device)

# Copies between device and host memory: PCIe 4.0 x16, which every device here has at least, and a start-up time.
HOST_LINK_GB_PER_S = 31.5
HOST_LINK_NS = 10_000

_NAME = re.compile(r"(?P<model>[a-z0-9.-]+)@(?P<device>[a-z0-9-]+?)(?:x(?P<count>[1-9]\d?))?")


def names() -> list[str]:
    """Every model on every device, on as few devices (1, 2, 4, ... in tensor parallel) as hold it."""
    found = []
    for model in MODELS:
        for device in DEVICES:
            for count in (1, 2, 4, 8, 16, 32):
                name = f"{model}@{device}" + (f"x{count}" if count > 1 else "")
                if MODELS[model].attention.heads % count:
                    continue
                fits = kv_blocks(MODELS[model], DEVICES[device], Parallel(tensor=count)) * BLOCK_SIZE
                if fits >= MODELS[model].model_length:
                    found.append(name)
                    break
    return found


@lru_cache(maxsize=256)
def roofline_profile(name: str, *, where: str, parallel: Parallel | None = None) -> Profile:
    """The profile ``name`` stands for, spread over devices as ``parallel`` says; absent: as the name does.

    Raises:
        InputError: no such model or device, it cannot be cut like this, or the weights leave no room for a KV cache;
            said at the field ``where``, or at ``parallel`` beside it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        message = f"{name!r} is not of the form MODEL@DEVICE or MODEL@DEVICExN, such as llama-3.1-70b@h100x4"
        raise InputError([Problem(where, message)])
    model = _known(match["model"], MODELS, "model", where)
    device = _known(match["device"], DEVICES, "device", where)
    spread = _spread(model, match["count"], parallel, where)
    blocks = kv_blocks(model, device, spread)
    if blocks < 1:
        named = spread.devices
        message = (
            f"{model.name} leaves {weight_bytes(model, spread) / 1e9:.0f} GB of weights to each of {named} x "
            f"{device.name}, which have {device.memory_gb:.0f} GB; spread it over more devices, such as "
            f"{model.name}@{device.name}x{2 * spread.tensor}"
        )
        raise InputError([Problem(where, message)])
    return _profile(name, model, device, spread, blocks)


def _spread(model: Model, count: str | None, parallel: Parallel | None, where: str) -> Parallel:
    if parallel is None:
        named = int(count or 1)
        if named > MOST_NAMED or model.attention.heads % named:
            heads = model.attention.heads
            message = f"{heads} heads cannot be spread evenly over {named} devices (at most {MOST_NAMED})"
            raise InputError([Problem(where, message)])
        return Parallel(tensor=named)
    place = parallel_where(where)
    if count is not None:
        message = f"says the devices, and so does the name (x{count}); leave one out"
        raise InputError([Problem(place, message)])
    found = problems(model, parallel, place)
    if found:
        raise InputError(found)
    return parallel


def parallel_where(profile_where: str) -> str:
    """Path of the section ``parallel`` beside a field ``profile``."""
    return ".".join((*profile_where.split(".")[:-1], "parallel"))


def _known(name: str, known: Mapping[str, KnownT], what: str, where: str) -> KnownT:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError([Problem(where, f"no {what} is called {name!r}; {hint}known: {', '.join(known)}")])


def _profile(name: str, model: Model, device: Device, spread: Parallel, blocks: int) -> Profile:
    count = spread.tensor
    rates = (device.tflops(model.weight_bits) * 1e3 * COMPUTE_SHARE, device.memory_gb_per_s * BANDWIDTH_SHARE)
    flops, bandwidth = (rate * count for rate in rates)  # operations and bytes per ns
    attention_flops = device.tflops_16 * 1e3 * count * COMPUTE_SHARE
    attention, layers = model.attention, model.layers
    kept_bytes = attention.kv_values * 2 * count / kv_shards(model, count)
    kept = layers * max(kept_bytes / bandwidth, attention.decode_flops / attention_flops)
    experts = expert_time(model, device, spread, rates)
    time = parallel_time(model, device, spread, experts)
    return Profile(
        name=name,
        model=model.name,
        device=f"{spread.devices} x {device.title}" if spread.devices > 1 else device.title,
        dtype="float8" if model.weight_bits == 8 else "bfloat16",
        kind="public specification",
        cost=Affine(
            base_ns=layers * LAYER_NS,
            prefill_token_ns=0.0,
            decode_request_ns=2 * model.head_parameters / flops,
            context_token_ns=kept,
            prefill_pair_ns=layers * attention.prefill_flops / attention_flops,
            batch_knots=_products(model, flops, bandwidth, whole=experts is None),
        ),
        parallel=None if spread.devices == 1 and experts is None else time,
        host=HostTime(base_ns=HOST_NS, request_ns=HOST_REQUEST_NS),
        link=HostLink(
            token_bytes=round(layers * attention.kv_values * 2),
            bytes_per_s=HOST_LINK_GB_PER_S * 1e9 * spread.devices * BANDWIDTH_SHARE,
            latency_ns=HOST_LINK_NS,
        ),
        residual_share=0.0,
        drift_share=0.0,
        held_out_error_share=STATED_ERROR_SHARE,
        domain={},
        steps_measured=0,
        measured_on={
            "note": "computed from public specifications, not measured; a calibration is better",
            "model source": model.source,
            "device source": device.source,
            "reachable share of peak rate": COMPUTE_SHARE,
            "reachable share of peak bandwidth": BANDWIDTH_SHARE,
            "devices in tensor parallel": count,
            "devices": spread.devices,
        },
        kv_blocks=blocks,
        model_length=model.model_length,
    )


def _products(model: Model, flops: float, bandwidth: float, *, whole: bool) -> Knots:
    """Time of matrix products by tokens in the step: the larger of compute and bytes, at points of its bends.

    ``whole``: routed experts are in it; else they are counted by who chooses them (`spec.parallel.ExpertTime`).
    """
    width = model.weight_bits // 8
    routed = model.expert_parameters if whole else 0
    active = model.active_parameters if whole else model.dense_parameters

    def at(tokens: int) -> float:
        read = model.dense_parameters + model.head_parameters + model.touched_share(tokens) * routed
        return max(2 * active * tokens / flops, width * read / bandwidth)

    read_all = width * (model.dense_parameters + model.head_parameters + routed)
    bend = max(1, round(read_all / bandwidth * flops / (2 * active)))
    places = {1, bend, 2 * bend, 4 * bend}
    if routed:  # the share of touched experts rises along a curve
        places.update(round(1.25**power) for power in range(60) if 1.25**power < 4 * bend)
    return tuple((place, at(place)) for place in sorted(places))
