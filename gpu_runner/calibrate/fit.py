"""Fits the cost of a step to measured steps, and says how far to trust it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from gpu_runner.calibrate.measured import Measured
from scheduler_core.spec.target import Affine

_HUBER = 1.345
_ROUNDS = 20
_HELD_OUT_EVERY = 4
_OUTLIER = 4.0
_NORMAL_MAD = 1.4826
_LEAST_SPREAD = 0.03  # where most steps fit exactly, those of another kind are no outliers
# Products of few rows get slower in jumps, so there the table is dense; those of many grow evenly.
_KNOTS = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512, 1024, 2048)
_LEAST_REACH = 0.5  # of the last stretch: few tokens into it say nothing about how it rises
_MOST_TIMES = 4.0  # of the predicted time: what is longer was the machine's, not the step's
_SERVED_QUANTILE = 0.95  # of each input: within it the served steps alone say what a step takes
_LEAST_SHARED_POINTS = 3
_TABLE_GAINS = 0.002  # of the error on kinds of steps left out: a table that gains less describes noise

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted cost with its errors, all relative; see `spec.target.Profile` for their meaning."""

    cost: Affine
    residual_share: float
    drift_share: float
    held_out_error_share: float
    held_out_bias_share: float
    domain: dict[str, float]


def fit(steps: Sequence[Measured], served: Sequence[Measured] = ()) -> Fit:
    """Fit ``steps``, which need at least two rounds and five points, together with those ``served`` in the real loop.

    Least squares on *relative* errors, so that short steps count as much as long ones; coefficients cannot be
    negative; Huber weights keep a step that the machine interrupted from bending the rest. A table over the step's
    tokens is part of the cost where it predicts points left out of the fit clearly better than a plain sum.

    Hand-made steps follow others like them and find caches warmer than those between which the host works. So they say
    how the cost grows, and those served how high it is: the former are brought to the level of the latter first.

    Such a fit follows the usual step. What service takes has the interrupted ones in it as well, so the whole cost is
    then raised to what the served steps took on average.
    """
    grid = _levelled(steps, served)
    steps = [*grid, *served]
    plain, table = _Model(()), _Model(_knots(steps))
    errors = {model: model.held_out(steps) for model in (plain, table)}
    biases = {model: _bias(errors[model], steps) for model in (plain, table)}
    chosen = table if biases[table] < biases[plain] - _TABLE_GAINS else plain
    inputs, durations = chosen.inputs(steps), _durations(steps)
    solution = _solve(inputs, durations)
    ratios = _clipped(durations / _predict(inputs, solution) - 1)
    rounds = np.array([step.round for step in steps])
    means = np.array([ratios[rounds == number].mean() for number in np.unique(rounds)])
    within = np.concatenate(
        [ratios[rounds == number] - mean for number, mean in zip(np.unique(rounds), means, strict=True)]
    )
    names = ("prefill_tokens", "decode_requests", "context_tokens", "prefill_pairs")
    return Fit(
        cost=chosen.cost(solution * _level(served, _predict(inputs, solution)[len(grid) :])),
        residual_share=float(within.std()),
        drift_share=float(means.std(ddof=1)) if means.size > 1 else 0.0,
        held_out_error_share=_error(errors[chosen]),
        held_out_bias_share=biases[chosen],
        domain={name: float(most) for name, most in zip(names, inputs[:, 1:5].max(axis=0), strict=True)},
    )


@dataclass(frozen=True, slots=True)
class _Model:
    """The sum of `Affine`, with a table over tokens at ``knots``: one rise, not negative, for each stretch between."""

    knots: tuple[int, ...]

    def inputs(self, steps: Sequence[Measured]) -> Floats:
        """One row a step: 1, the numbers of its shape, and how far its tokens reach into each stretch."""
        rows = np.array([(1.0, *step.shape[:4]) for step in steps], np.float64)
        tokens = rows[:, 1] + rows[:, 2]
        stretches = [
            np.clip(tokens - left, 0, right - left)
            for left, right in zip(self.knots, (*self.knots[1:-1], np.inf), strict=False)
        ]
        return np.column_stack((rows, *stretches))

    def cost(self, solution: Floats) -> Affine:
        lengths = np.diff(np.array(self.knots, np.float64)) if self.knots else np.zeros(0)
        levels = np.concatenate(([0.0], np.cumsum(lengths * solution[5:]))) if self.knots else ()
        return Affine(
            base_ns=solution[0],
            prefill_token_ns=solution[1],
            decode_request_ns=solution[2],
            context_token_ns=solution[3],
            prefill_pair_ns=solution[4],
            batch_knots=tuple((knot, round(float(level))) for knot, level in zip(self.knots, levels, strict=True)),
        )

    def held_out(self, steps: Sequence[Measured]) -> Floats:
        """measured / predicted - 1 of every step of every fourth point, by a fit to the others; NaN for those."""
        inputs, durations = self.inputs(steps), _durations(steps)
        left_out = np.array([step.point % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 for step in steps])
        errors = np.full(durations.size, np.nan)
        if left_out.any():
            solution = _solve(inputs[~left_out], durations[~left_out])
            errors[left_out] = _clipped(durations[left_out] / _predict(inputs[left_out], solution) - 1)
        return errors


def _levelled(grid: Sequence[Measured], served: Sequence[Measured]) -> Sequence[Measured]:
    """``grid`` times the median of what a fit to ``served`` alone says over what was measured, where both have steps.

    Where the served ones enclose too few points it stays as it is.
    """
    if not served:
        return grid
    model = _Model(_knots(served))
    usual = np.quantile(np.array([step.shape[:4] for step in served], np.float64), _SERVED_QUANTILE, axis=0)
    shared = [step for step in grid if np.all(np.array(step.shape[:4]) <= usual)]
    if len({step.point for step in shared}) < _LEAST_SHARED_POINTS:
        return grid
    predicted = _predict(model.inputs(shared), _solve(model.inputs(served), _durations(served)))
    level = float(np.median(predicted / _durations(shared)))
    return [replace(step, duration_ns=round(level * step.duration_ns)) for step in grid]


def _level(served: Sequence[Measured], predicted: Floats) -> float:
    """Mean of what served steps took over what was predicted; one that took many times its time counts as some.

    Every step counts alike, so that few long ones do not decide about the many.
    """
    if not served:
        return 1.0
    return float(np.minimum(_durations(served) / predicted, _MOST_TIMES).mean())


def _knots(steps: Sequence[Measured]) -> tuple[int, ...]:
    """Those of the usual places that enclose a measured number of tokens, at least two or none."""
    tokens = {step.shape.prefill_tokens + step.shape.decode_requests for step in steps}
    kept = [_KNOTS[0]]
    for knot in _KNOTS[1:]:
        if any(kept[-1] < count <= knot for count in tokens):
            kept.append(knot)
    if len(kept) > 2 and max(tokens) - kept[-2] < _LEAST_REACH * (kept[-1] - kept[-2]):
        del kept[-2]
    return tuple(kept) if len(kept) > 1 else ()


def _durations(steps: Sequence[Measured]) -> Floats:
    return np.array([step.duration_ns for step in steps], np.float64)


def _error(errors: Floats) -> float:
    """Mean absolute error of the steps left out."""
    return float(np.nanmean(np.abs(errors))) if not np.isnan(errors).all() else 0.0


def _bias(errors: Floats, steps: Sequence[Measured]) -> float:
    """Root mean square over the points left out of their mean error: what repeats do not average away."""
    points = np.array([step.point for step in steps])
    means = [errors[points == point].mean() for point in np.unique(points[~np.isnan(errors)])]
    return float(np.sqrt(np.mean(np.square(means)))) if means else 0.0


def _solve(inputs: Floats, durations: Floats) -> Floats:
    """Non-negative coefficients with ``inputs @ coefficients ~ durations``, by reweighted least squares.

    Errors are relative to the larger of measured and predicted, so that a step taken for far shorter than it was weighs
    no more than one that was stretched; the first solution, before anything is predicted, is of absolute errors.
    """
    scale = np.abs(inputs / durations[:, None]).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = inputs / scale
    weights, larger = np.ones(durations.size), np.full(durations.size, float(durations.mean()))
    solution = np.zeros(inputs.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights) / larger
        solution, _norm = nnls(scaled * root[:, None], durations * root)
        predicted = scaled @ solution
        larger = np.maximum(durations, predicted)
        residuals = np.abs(predicted - durations) / larger
        spread = max(_NORMAL_MAD * float(np.median(residuals)), _LEAST_SPREAD)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(residuals, 1e-12))
    return np.asarray(solution / scale, np.float64)


def _predict(inputs: Floats, cost: Floats) -> Floats:
    return np.asarray(np.maximum(inputs @ cost, 1.0), np.float64)


def _clipped(ratios: Floats) -> Floats:
    """``ratios`` with outliers pulled in to four robust standard deviations of the median."""
    middle = float(np.median(ratios))
    spread = max(_NORMAL_MAD * float(np.median(np.abs(ratios - middle))), _LEAST_SPREAD)
    return np.asarray(np.clip(ratios, middle - _OUTLIER * spread, middle + _OUTLIER * spread), np.float64)
