"""What a summary says about the model's word: bands around predicted figures, and a measured run against the model."""

from typing import Literal

from scheduler_core.spec.base import Spec


class Band(Spec):
    """Where a predicted figure may lie, given the errors that calibration measured."""

    low: float
    high: float


class Predicted(Spec):
    """How far a modelled run may be trusted.

    ``bands`` are by metric, and where there are none ``unbanded`` says why. ``error_share`` is the error of step times
    that they stand for, of several profiles the largest. ``extrapolated`` says, for each input of the step cost that
    went beyond the measured domain, up to where, and ``extrapolated_share`` how many steps did.
    """

    error_share: float
    bands: dict[str, Band] = {}
    unbanded: str = ""
    extrapolated: dict[str, float] = {}
    extrapolated_share: float = 0.0


class KindOfSteps(Spec):
    """Steps of one kind, measured and predicted; ``decoding`` counts their decoding requests, at least and at most.

    ``error_share`` is predicted / measured - 1; ``of_error_share`` the part that the kind has in the sum of all kinds'
    errors, taken without sign.
    """

    kind: Literal["decode", "prompt", "decode and prompt"]
    decoding: tuple[int, int]
    steps: int
    measured_ms: float
    predicted_ms: float
    error_share: float
    of_error_share: float


class StepAside(Spec):
    """One step of one side: when it was planned and what it granted (``tokens`` by request)."""

    step: int
    planned_ms: float
    tokens: dict[int, int]


class Divergence(Spec):
    """The first step at which the two sides decided differently; None where a side had no such step."""

    steps_equal: int
    measured: StepAside | None
    predicted: StepAside | None


class FigureError(Spec):
    """A metric of the run beside the same metric of the model; ``error_share`` is predicted / measured - 1."""

    measured: float
    predicted: float
    error_share: float


class AgainstModel(Spec):
    """A measured run beside the model on the same arrival plan and policy.

    Times of steps are of the measured run's own steps, each beside what the profile predicts for its shape, so that
    they compare even after decisions have parted.
    """

    profile: str
    profile_digest: str
    steps: int
    measured_ms: float
    predicted_ms: float
    error_share: float
    host_measured_ms: float
    host_predicted_ms: float
    extrapolated_share: float
    kinds: list[KindOfSteps]
    divergence: Divergence | None
    figures: dict[str, FigureError]
