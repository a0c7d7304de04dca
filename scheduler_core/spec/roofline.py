"""Step costs from public specifications: a roofline with separate compute-bound and bandwidth-bound terms.

Named ``MODEL@DEVICE`` or ``MODEL@DEVICExN`` for N devices in tensor parallel, such as ``llama-3.1-70b@h100x4``. What is
counted, per step (Williams et al., "Roofline", CACM 2009, applied to each part of a decoder's step on its own):

* matrix products: the larger of 2 operations per weight and token at the reachable rate, and the bytes of the weights
  read once per step at the reachable bandwidth; of routed experts those that the step's tokens are expected to touch
* the output head for each decoding request
* prefill attention: operations per (query, key) pair, compute-bound
* decode attention: per kept token the larger of its bytes and its operations; latent attention keeps one vector
* tensor parallel: two all-reduces per layer, bytes over the link and a latency each
"""

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from scheduler_core.spec.devices import DEVICES, Device
from scheduler_core.spec.models import MODELS, Model
from scheduler_core.spec.target import Affine, HostLink, HostTime, Knots, Profile
from scheduler_core.types.errors import InputError, Problem

# What well-tuned kernels reach of the peaks, and what a step costs beside them: assumptions, stated in each profile.
COMPUTE_SHARE = 0.70
BANDWIDTH_SHARE = 0.80
MEMORY_SHARE = 0.90
LAYER_NS = 10_000
HOST_NS = 500_000
HOST_REQUEST_NS = 5_000
REDUCE_NS = 10_000
STATED_ERROR_SHARE = 0.25
MOST_DEVICES = 64
BLOCK_SIZE = 16

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
                if _blocks(MODELS[model], DEVICES[device], count) * BLOCK_SIZE >= MODELS[model].model_length:
                    found.append(name)
                    break
    return found


@lru_cache(maxsize=256)
def roofline_profile(name: str, *, where: str) -> Profile:
    """The profile ``name`` stands for.

    Raises:
        InputError: no such model or device, or the weights leave no room for a KV cache; said at the field ``where``.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        message = f"{name!r} is not of the form MODEL@DEVICE or MODEL@DEVICExN, such as llama-3.1-70b@h100x4"
        raise InputError([Problem(where, message)])
    model = _known(match["model"], MODELS, "model", where)
    device = _known(match["device"], DEVICES, "device", where)
    count = int(match["count"] or 1)
    if count > MOST_DEVICES or model.attention.heads % count:
        message = f"{model.attention.heads} heads cannot be spread evenly over {count} devices (at most {MOST_DEVICES})"
        raise InputError([Problem(where, message)])
    blocks = _blocks(model, device, count)
    if blocks < 1:
        message = (
            f"{model.name} needs {_weight_bytes(model) / 1e9:.0f} GB for its weights, {count} x {device.name} have "
            f"{count * device.memory_gb:.0f} GB; name more devices, such as {model.name}@{device.name}x{2 * count}"
        )
        raise InputError([Problem(where, message)])
    return _profile(name, model, device, count, blocks)


def _known(name: str, known: Mapping[str, KnownT], what: str, where: str) -> KnownT:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError([Problem(where, f"no {what} is called {name!r}; {hint}known: {', '.join(known)}")])


def _profile(name: str, model: Model, device: Device, count: int, blocks: int) -> Profile:
    flops = device.tflops(model.weight_bits) * 1e3 * count * COMPUTE_SHARE  # operations per ns
    attention_flops = device.tflops_16 * 1e3 * count * COMPUTE_SHARE
    bandwidth = device.memory_gb_per_s * count * BANDWIDTH_SHARE  # bytes per ns
    attention, layers = model.attention, model.layers
    kept_bytes = attention.kv_values * 2 * count / _shards(model, count)
    kept = layers * max(kept_bytes / bandwidth, attention.decode_flops / attention_flops)
    reduced = 2 * layers * 2 * (count - 1) / count
    return Profile(
        name=name,
        model=model.name,
        device=f"{count} x {device.title}" if count > 1 else device.title,
        dtype="float8" if model.weight_bits == 8 else "bfloat16",
        kind="public specification",
        cost=Affine(
            base_ns=layers * (LAYER_NS + (2 * REDUCE_NS if count > 1 else 0)),
            prefill_token_ns=reduced * model.hidden * 2 / device.link_gb_per_s,
            decode_request_ns=reduced * model.hidden * 2 / device.link_gb_per_s + 2 * model.head_parameters / flops,
            context_token_ns=kept,
            prefill_pair_ns=layers * attention.prefill_flops / attention_flops,
            batch_knots=_products(model, flops, bandwidth),
        ),
        host=HostTime(base_ns=HOST_NS, request_ns=HOST_REQUEST_NS),
        link=HostLink(
            token_bytes=round(layers * attention.kv_values * 2),
            bytes_per_s=HOST_LINK_GB_PER_S * 1e9 * count * BANDWIDTH_SHARE,
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
        },
        kv_blocks=blocks,
        model_length=model.model_length,
    )


def _products(model: Model, flops: float, bandwidth: float) -> Knots:
    """Time of all matrix products by tokens in the step: the larger of compute and bytes, at points of its bends."""
    width = model.weight_bits // 8

    def at(tokens: int) -> float:
        read = model.dense_parameters + model.head_parameters + model.touched_share(tokens) * model.expert_parameters
        return max(2 * model.active_parameters * tokens / flops, width * read / bandwidth)

    read_all = width * (model.dense_parameters + model.head_parameters + model.expert_parameters)
    bend = max(1, round(read_all / bandwidth * flops / (2 * model.active_parameters)))
    places = {1, bend, 2 * bend, 4 * bend}
    if model.experts is not None:  # the share of touched experts rises along a curve
        places.update(round(1.25**power) for power in range(60) if 1.25**power < 4 * bend)
    return tuple((place, at(place)) for place in sorted(places))


def _weight_bytes(model: Model) -> int:
    return model.parameters * model.weight_bits // 8


def _shards(model: Model, count: int) -> int:
    """Parts into which ``count`` devices split the KV cache: by KV head; a latent vector is kept whole on each."""
    return 1 if model.attention.kv_rank else min(count, model.attention.kv_heads)


def _blocks(model: Model, device: Device, count: int) -> int:
    """KV blocks of `BLOCK_SIZE` tokens that fit beside the weights; 0 when these do not."""
    room = device.memory_gb * 1e9 * MEMORY_SHARE - _weight_bytes(model) / count
    block = model.layers * model.attention.kv_values * 2 * BLOCK_SIZE / _shards(model, count)
    return max(0, int(room // block))
