"""A measured run step by step against the model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from scheduler_core.evidence.prediction import AgainstModel, Divergence, FigureError, KindOfSteps, StepAside
from scheduler_core.evidence.schema import Figure
from scheduler_core.fidelity.domain import Domain
from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.target import Profile
from scheduler_core.types.intervals import COMPUTE, IntervalClass
from scheduler_core.types.records import Step
from scheduler_core.types.shape import StepShape, shape_of_step
from scheduler_core.types.time import NS_PER_MS, Ns

_Kind = tuple[Literal["decode", "prompt", "decode and prompt"], int]


@dataclass(slots=True)
class _Sum:
    steps: int = 0
    measured: Ns = 0
    predicted: Ns = 0


@dataclass(slots=True)
class _Account:
    """Measured and predicted time, in all and by kind of step."""

    all: _Sum = field(default_factory=_Sum)
    host: _Sum = field(default_factory=_Sum)
    kinds: dict[_Kind, _Sum] = field(default_factory=dict)

    def take(self, shape: StepShape, measured: Ns, predicted: Ns) -> None:
        for entry in (self.all, self.kinds.setdefault(_kind(shape), _Sum())):
            entry.steps += 1
            entry.measured += measured
            entry.predicted += predicted


def against_model(
    measured: Sequence[Step],
    modelled: Iterable[Step],
    profile: Profile,
    *,
    figures: Mapping[str, Figure],
    predictions: Mapping[str, Figure],
) -> AgainstModel:
    """Set the steps of a run beside ``profile`` and beside the ``modelled`` steps of the same plan and policy.

    A step takes from the end of the step before it, or from its own planning after idle time, to its last token.
    ``figures`` and ``predictions`` are the metrics of the two runs.
    """
    account, domain = _account(measured, profile)
    total = account.all
    return AgainstModel(
        profile=profile.name,
        profile_digest=profile.digest(),
        steps=total.steps,
        measured_ms=_ms(total.measured),
        predicted_ms=_ms(total.predicted),
        error_share=_error(total.predicted, total.measured),
        host_measured_ms=_ms(account.host.measured),
        host_predicted_ms=_ms(account.host.predicted),
        extrapolated_share=domain.share,
        kinds=_kinds(account),
        divergence=divergence(measured, modelled),
        figures={name: error for name in figures if (error := _figure(figures[name], predictions.get(name)))},
    )


def divergence(measured: Iterable[Step], modelled: Iterable[Step]) -> Divergence | None:
    """Where the decisions of two runs part, by the digests of their plans; None when they never do."""
    for number, (real, model) in enumerate(zip_longest(measured, modelled)):
        if real is None or model is None or real.digest != model.digest:
            return Divergence(steps_equal=number, measured=_aside(real), predicted=_aside(model))
    return None


def _account(steps: Sequence[Step], profile: Profile) -> tuple[_Account, Domain]:
    cost, account, domain = StepCost(profile), _Account(), Domain(profile)
    before: Ns | None = None
    for step in steps:
        shape = shape_of_step(step)
        gaps = [start for kind, _resource, start, _end in step.lanes if kind == IntervalClass.HOST_GAP]
        began = gaps[0] if gaps else step.planned_ns
        compute = [(start, end) for kind, _resource, start, end in step.lanes if kind == COMPUTE]
        idle = began - before if before is not None else 0
        account.take(shape, step.available_ns - began, cost.step_ns(shape, step.id) + cost.wake_ns(max(0, idle)))
        if gaps and compute:
            account.host.measured += step.available_ns - began - sum(end - start for start, end in compute)
            account.host.predicted += cost.step_ns(shape, step.id) - cost.parts(shape, step.id).device_ns
        domain.take(shape)
        before = step.available_ns
    return account, domain


def _kind(shape: StepShape) -> _Kind:
    """Phases, and the power of two at or below the number of decoding requests."""
    at_least = 1 << (shape.decode_requests.bit_length() - 1) if shape.decode_requests else 0
    if not shape.prefill_tokens:
        return "decode", at_least
    return ("decode and prompt" if at_least else "prompt"), at_least


def _kinds(account: _Account) -> list[KindOfSteps]:
    """Kinds with the largest part in the error first."""
    errors = sum(abs(entry.predicted - entry.measured) for entry in account.kinds.values())
    kinds = [
        KindOfSteps(
            kind=kind,
            decoding=(at_least, max(0, 2 * at_least - 1)),
            steps=entry.steps,
            measured_ms=_ms(entry.measured),
            predicted_ms=_ms(entry.predicted),
            error_share=_error(entry.predicted, entry.measured),
            of_error_share=abs(entry.predicted - entry.measured) / errors if errors else 0.0,
        )
        for (kind, at_least), entry in account.kinds.items()
    ]
    return sorted(kinds, key=lambda entry: -entry.of_error_share)


def _aside(step: Step | None) -> StepAside | None:
    if step is None:
        return None
    return StepAside(step=step.id, planned_ms=_ms(step.planned_ns), tokens={row[0]: row[3] for row in step.grants})


def _figure(measured: Figure, predicted: Figure | None) -> FigureError | None:
    if not measured.value or predicted is None or predicted.value is None:
        return None
    error = predicted.value / measured.value - 1
    return FigureError(measured=measured.value, predicted=predicted.value, error_share=error)


def _error(predicted: Ns, measured: Ns) -> float:
    return predicted / measured - 1 if measured else 0.0


def _ms(time: Ns) -> float:
    return time / NS_PER_MS
