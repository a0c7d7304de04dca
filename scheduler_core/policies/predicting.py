"""From the predict section of a policy to a predictor, and to what is announced from outside."""

from dataclasses import replace

from scheduler_core.policies.predictors import (
    Announced,
    Blurred,
    DeclaredLimit,
    MeanByClass,
    MeanOfEnded,
    QuantileOfEnded,
)
from scheduler_core.sched.policy import PolicySet, Predictor
from scheduler_core.spec.policy import PolicySpec, PredictSection
from scheduler_core.types.foresight import Foresight

QUANTILE = 0.9


def with_predictor(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with the predictor that the resolved ``spec`` names, for all parts that ask."""
    return policy if spec.predict.by in (None, "none") else replace(policy, predictor=_predictor(spec.predict))


def predictor_of(policy: PolicySet) -> Predictor:
    """What the parts of ``policy`` go by: its predictor, or the declared limit."""
    return DeclaredLimit() if policy.predictor is None else policy.predictor


def foresight_of(spec: PredictSection) -> Foresight | None:
    """What a run announces of output lengths: something only for a study of perfect knowledge."""
    return Foresight(spec.sigma or 0.0, spec.bias or 1.0, spec.seed or 0) if spec.by == "perfect" else None


def _predictor(spec: PredictSection) -> Predictor:
    """The error of ``perfect`` is part of what is announced: no policy is handed the true length beside it."""
    if spec.by == "perfect":
        return Announced()
    exact: Predictor
    if spec.by == "mean":
        exact = MeanOfEnded()
    elif spec.by == "quantile":
        exact = QuantileOfEnded(QUANTILE if spec.quantile is None else spec.quantile)
    else:
        exact = MeanByClass(spec.classes or "tenant")
    sigma, bias = spec.sigma or 0.0, spec.bias or 1.0
    return exact if sigma == 0 and bias == 1 else Blurred(exact, sigma, bias, spec.seed or 0)
