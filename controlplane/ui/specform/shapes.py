"""What kind of field an annotation is, and how models are laid out."""

import re
import types
import typing
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scheduler_core.spec import base, goal, parallel, policy, pools, server, studies, target, topology, workload
from scheduler_core.verdict.titles import SPELLED

Choices = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Shape:
    """A field's kind: text, number, names, numbers, flag, select, model, items or pairs.

    ``model`` is the class of a model or of the items; ``choices`` the values of a select or the keys of pairs;
    ``optional`` says that a model may be absent as a whole, which differs from one with nothing but defaults.
    """

    kind: str
    model: type[BaseModel] | None = None
    choices: tuple[str, ...] = ()
    keyed: bool = False
    percent: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Layout:
    """How a model's fields are shown: a choice between groups of fields, plain fields, and fields behind "more"."""

    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def _one_of(model: type[BaseModel]) -> Layout:
    return Layout(variants={name: (name,) for name in model.model_fields})


_LAYOUTS: dict[type[BaseModel], Layout] = {
    workload.Arrivals: _one_of(workload.Arrivals),
    workload.Length: _one_of(workload.Length),
    target.TargetSpec: _one_of(target.TargetSpec),
    workload.WorkloadSpec: Layout(
        variants={
            "profile": ("profile", "rate_rps", "lengths_scale"),
            "arrivals": ("arrivals", "lengths"),
            "trace": ("trace",),
        },
        more=("tenants", "prefix", "sessions", "output_limit", "warmup_share", "block_size", "seed"),
    ),
    workload.Trace: Layout(
        hidden=("file",),
        more=("format", "columns", "time_unit", "block_size", "same_instant", "zero_output"),
    ),
    target.TorchTarget: Layout(more=("dtype", "threads", "weight_seed", "sampling", "price_per_device_hour")),
    server.ServerTarget: Layout(
        more=(
            "server",
            "sources",
            "api",
            "prompts",
            "tokenizer",
            "vocab_size",
            "sampling",
            "ignore_eos",
            "feed_back",
            "reset_cache",
            "warmup_requests",
            "scrape_ms",
            "device_monitor",
            "profile_s",
            "client",
        ),
    ),
    server.Deployment: Layout(more=("server", "sources")),
    server.MetricSource: Layout(more=("query", "devices", "price_per_hour")),
    goal.GoalSpec: Layout(more=("confidence", "thresholds")),
    policy.PolicySpec: Layout(),
    studies.Dimension: Layout(more=("scale", "whole", "points")),
    pools.PoolsSection: Layout(
        more=(
            "hold",
            "prefix_weight",
            "prefix_fetch_ratio",
            "refuse",
            "migrate",
            "lease_ms",
            "stream_tokens",
            "retracted_first",
            "urgent_headroom_tokens",
            "handoff_budget_ms",
            "patience_ms",
            "broken",
            "first_token",
            "reserve",
            "move",
            "accept_share",
            "headroom_tokens",
            "on_death",
            "notice_ms",
            "look_every_ms",
        ),
    ),
    target.ModelledTarget: Layout(more=("parallel", "speculative", "noise", "price_per_device_hour")),
    parallel.Parallel: Layout(
        more=("router_seed", "link_gb_per_s", "link_latency_us", "stage_gb_per_s"),
    ),
    topology.Topology: Layout(more=("broken_share", "late_share", "late_ms")),
}


def layout_of(model: type[BaseModel]) -> Layout:
    """The model's layout; all fields in order of definition when it has none of its own."""
    return _LAYOUTS.get(model, Layout())


def shape_of(info: FieldInfo) -> Shape:
    """Shape of a field."""
    percent = any(getattr(item, "func", None) is base.read_fraction for item in info.metadata)
    shape = _shape(info.annotation, percent=percent)
    absent = shape.kind == "model" and info.default is None and not info.is_required()
    return replace(shape, optional=True) if absent else shape


def _shape(annotation: Any, *, percent: bool = False) -> Shape:
    options, fractions = _alternatives(annotation)
    percent = percent or fractions
    models = [item for item in options if isinstance(item, type) and issubclass(item, BaseModel)]
    if models:
        return Shape("model", model=models[0])
    origin = get_origin(options[0])
    if origin is dict:
        key, value = get_args(options[0])
        inner = _shape(value)
        if inner.kind == "model":
            return Shape("items", model=inner.model, keyed=True)
        return Shape("pairs", choices=_literals(_alternatives(key)[0]), percent=inner.percent)
    if origin is tuple:
        inner = _shape(get_args(options[0])[0])
        return Shape("items", model=inner.model) if inner.kind == "model" else Shape(_LISTS[inner.kind])
    if all(get_origin(item) is Literal for item in options):
        return Shape("select", choices=_literals(options))
    if options == [bool]:
        return Shape("flag")
    return Shape("number" if {int, float} & set(options) else "text", percent=percent)


def _alternatives(annotation: Any) -> tuple[list[Any], bool]:
    """Members of a union without None and without annotations, and whether a percentage is understood."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        options, fractions = _alternatives(inner)
        return options, fractions or any(getattr(item, "func", None) is base.read_fraction for item in metadata)
    if origin in (typing.Union, types.UnionType):
        found: list[Any] = []
        fractions = False
        for item in get_args(annotation):
            if item is not type(None):
                options, inner_fractions = _alternatives(item)
                found += options
                fractions = fractions or inner_fractions
        return found, fractions
    return [annotation], False


def _literals(options: list[Any]) -> tuple[str, ...]:
    return tuple(str(value) for item in options if get_origin(item) is Literal for value in get_args(item))


_LISTS = {"number": "numbers", "text": "names"}
_UNITS = {
    "_gb_per_s": "GB/s",
    "_ms_per_token": "ms per token",
    "_us_per_token": "µs per token",
    "_per_s": "per second",
    "_rps": "requests/s",
    "_ms": "ms",
    "_us": "µs",
    "_ns": "ns",
    "_s": "s",
    "tokens": "tokens",
    "blocks": "blocks",
    "_size": "tokens",
}
_SPELLED = SPELLED | {"rps": "rate", "id": "ID"}
_LABELS = {
    "rate_rps": "Rate",
    "from_rps": "From rate",
    "to_rps": "To rate",
    "run_limit_s": "Longest run",
    "by": "Serve by",
    "think_s": "Think time",
    "over_s": "Over",
    "for_s": "For",
    "policy": "Preset",
    "prefill": "Prefill groups",
    "better_by": "Better by at least",
    "guard": "Guards",
    "size": "Batch size",
}
_LABELS_IN: dict[tuple[type[BaseModel] | None, str], str] = {(pools.Scaling, "by"): "Pressure"}


def label_of(name: str, model: type[BaseModel] | None = None) -> tuple[str, str]:
    """(label, unit) of a field by its name, and where it means something else there, its ``model``.

    ``max_wait_ms`` is "Max wait" in "ms"; "Host blocks" say their unit themselves.
    """
    if (model, name) in _LABELS_IN:
        return _LABELS_IN[model, name], ""
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    if name == "size":
        unit = "requests"
    if name in _LABELS:
        return _LABELS[name], unit
    stem = re.sub(r"_(gb_per_s|[mu]s_per_token|per_s|ms|us|ns|s)$", "", name)
    words = [_SPELLED.get(word, word) for word in stem.split("_")]
    text = " ".join(words)
    return text[:1].upper() + text[1:], "" if words[-1] == unit else unit


def summary_of(model: type[BaseModel]) -> str:
    """First paragraph of a model's docstring, without the marks of code in it."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].split()).replace("`", "")
