"""Fits the affine step cost to measured steps, and says how far to trust it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from gpu_runner.calibrate.measure import Measured
from scheduler_core.spec.target import Affine

_HUBER = 1.345
_ROUNDS = 20
_HELD_OUT_EVERY = 4
_OUTLIER = 4.0
_NORMAL_MAD = 1.4826

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted cost with its errors, all relative; see `spec.target.Profile` for their meaning."""

    cost: Affine
    residual_share: float
    drift_share: float
    held_out_error_share: float
    domain: dict[str, float]


def fit(steps: Sequence[Measured]) -> Fit:
    """Fit ``steps``, which need at least two rounds and five points.

    Least squares on *relative* errors, so that short steps count as much as long ones; coefficients cannot be
    negative; Huber weights keep a step that the machine interrupted from bending the rest.
    """
    inputs = np.array([_inputs(step) for step in steps], np.float64)
    durations = np.array([step.duration_ns for step in steps], np.float64)
    held_out = np.array([step.point % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 for step in steps])
    partial = _solve(inputs[~held_out], durations[~held_out])
    errors = _clipped(durations / _predict(inputs, partial) - 1)
    cost = _solve(inputs, durations)
    ratios = _clipped(durations / _predict(inputs, cost) - 1)
    rounds = np.array([step.round for step in steps])
    means = np.array([ratios[rounds == number].mean() for number in np.unique(rounds)])
    within = np.concatenate(
        [ratios[rounds == number] - mean for number, mean in zip(np.unique(rounds), means, strict=True)]
    )
    names = ("prefill_tokens", "decode_requests", "context_tokens", "prefill_pairs")
    return Fit(
        cost=Affine(
            base_ns=cost[0],
            prefill_token_ns=cost[1],
            decode_request_ns=cost[2],
            context_token_ns=cost[3],
            prefill_pair_ns=cost[4],
        ),
        residual_share=float(within.std()),
        drift_share=float(means.std(ddof=1)) if means.size > 1 else 0.0,
        held_out_error_share=float(np.abs(errors[held_out]).mean()) if held_out.any() else 0.0,
        domain={name: float(most) for name, most in zip(names, inputs[:, 1:].max(axis=0), strict=True)},
    )


def _inputs(step: Measured) -> tuple[float, ...]:
    shape = step.shape
    return 1.0, shape.prefill_tokens, shape.decode_requests, shape.context_tokens, shape.prefill_pairs


def _solve(inputs: Floats, durations: Floats) -> Floats:
    """Non-negative coefficients with ``inputs @ coefficients ~ durations``, by reweighted least squares."""
    relative = inputs / durations[:, None]
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(durations.size)
    solution = np.zeros(inputs.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solution, _norm = nnls(relative / scale * root[:, None], root)
        residuals = np.abs(relative / scale @ solution - 1)
        spread = max(_NORMAL_MAD * float(np.median(residuals)), 1e-6)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(residuals, 1e-12))
    return np.asarray(solution / scale, np.float64)


def _predict(inputs: Floats, cost: Floats) -> Floats:
    return np.asarray(np.maximum(inputs @ cost, 1.0), np.float64)


def _clipped(ratios: Floats) -> Floats:
    """``ratios`` with outliers pulled in to four robust standard deviations of the median."""
    middle = float(np.median(ratios))
    spread = max(_NORMAL_MAD * float(np.median(np.abs(ratios - middle))), 1e-6)
    return np.asarray(np.clip(ratios, middle - _OUTLIER * spread, middle + _OUTLIER * spread), np.float64)
