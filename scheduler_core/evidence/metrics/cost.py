"""What a run cost, where its target has a price: per million valid tokens, and what went into requests that failed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.metrics.metric import Metric, absent, defined
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables, instances_of
from scheduler_core.types.time import NS_PER_S

COST = "cost_per_million_tokens"
PAID = "cost_of_devices"
FAILURES = "cost_of_failures"
WASTED_WORK = "wasted_work_share"
WASTED_TOKENS = "wasted_tokens_share"
COST_FIGURES = (COST, PAID, FAILURES, WASTED_WORK, WASTED_TOKENS)
_UNIT = "currency"


def prices_per_hour(target: Mapping[str, Any], groups: Sequence[str]) -> list[float] | None:
    """Price of an hour of a device of each instance; None unless all have one.

    ``groups`` are those of a cluster's instances, each priced as its group or else as the target. A server's devices
    are its sources.
    """
    (kind, chosen), *_ = [(name, value) for name, value in target.items() if isinstance(value, Mapping)] or [("", {})]
    if kind == "server":
        prices = [source.get("price_per_hour") for source in instances_of(chosen)]
    else:
        described = (chosen.get("topology") or {}).get("groups") or {}
        own = chosen.get("price_per_device_hour")
        prices = [described.get(group, {}).get("price_per_device_hour") or own for group in groups] or [own]
    known = [float(price) for price in prices if price is not None]
    return known if known and len(known) == len(prices) else None


def paid(run: RunTables) -> float | None:
    """What was paid over the measured window: the price of each device for as long as it was held."""
    instances = run.started.instances
    prices = prices_per_hour(run.started.target, [str(instance["group"]) for instance in instances])
    if prices is None:
        return None
    if not instances:
        return sum(prices) * (1 if run.started.target.get("server") else run.devices) / 3600 * run.window_s
    return sum(
        price / 3600 * int(instance.get("devices", 1)) * run.use.held_ns([index]) / NS_PER_S
        for index, (price, instance) in enumerate(zip(prices, instances, strict=True))
    )


def tokens_worked(run: RunTables) -> Ints:
    """Tokens computed for each request: of its prompt, once or again after it lost them, and of its answer.

    Prompt tokens found in a cache were not computed. Where nobody saw what was computed of a prompt, none is counted.
    """
    rows = run.requests.rows
    prompt = np.maximum(rows["prefilled_tokens"], 0)
    return np.asarray(prompt + rows["recomputed_tokens"] + rows["output_tokens"], dtype=np.int64)


def wasted_share(run: RunTables, tokens: Ints) -> float | None:
    """Share of ``tokens`` of the measured requests that went to requests which did not finish; None of no tokens."""
    measured = run.requests.measured
    produced = float(tokens[measured].sum())
    return float(tokens[measured & ~run.requests.finished].sum()) / produced if produced else None


def _unseen(run: RunTables) -> str:
    """What is not in the work of requests that did not finish, for want of anybody who saw it."""
    unseen = run.requests.measured & (run.requests.rows["prefilled_tokens"] == MISSING)
    count = int(unseen.sum())
    return f"requests without a token, of whose prompts nobody saw what was computed: {count}" if count else ""


def _priced(
    name: str,
    formula: str,
    value: Callable[[RunTables, float], float | None],
    why: str,
    note: Callable[[RunTables], str] = lambda run: "",
) -> Metric:
    """A figure in the currency of the declared price; ``why`` it may be absent in spite of a price."""

    def compute(run: RunTables) -> Figure:
        spent = paid(run)
        if spent is None:
            return absent(_UNIT, Absence.NOT_MEASURED, "no price was declared")
        return defined(value(run, spent), _UNIT, why, note(run))

    return Metric(name, _UNIT, formula, "lower", "run", "one per run", compute)


def _per_million(run: RunTables, spent: float) -> float | None:
    tokens = float(run.requests.rows["output_tokens"][run.requests.measured & run.requests.finished].sum())
    return spent / tokens * 1e6 if tokens else None


def _failures(run: RunTables, spent: float) -> float | None:
    """Where nothing finished, all that was paid bought nothing, with tokens or without."""
    if not (run.requests.measured & run.requests.finished).any():
        return spent if run.requests.measured.any() else None
    wasted = wasted_share(run, tokens_worked(run))
    return None if wasted is None else spent * wasted


def _wasted_work(run: RunTables) -> Figure:
    return defined(wasted_share(run, tokens_worked(run)), "share", "no token was computed", _unseen(run))


def _wasted_tokens(run: RunTables) -> Figure:
    return defined(wasted_share(run, run.requests.rows["output_tokens"]), "share", "no token was produced")


def cost_metrics() -> Iterable[Metric]:
    """All of them."""
    yield _priced(COST, "price of the devices over the measured window / output tokens of finished requests x 10^6",
                  _per_million, "nothing finished, so there is no valid token")  # fmt: skip
    yield _priced(PAID, "price of the devices over the measured window, each for as long as it was held",
                  lambda run, spent: spent, "")  # fmt: skip
    yield _priced(FAILURES, "cost_of_devices x wasted_work_share; all of it where no request finished",
                  _failures, "nothing was measured", _unseen)  # fmt: skip
    yield Metric(WASTED_WORK, "share", "tokens computed for measured requests that did not finish / for all of them; "
                 "computed are prompt tokens that were not found in a cache, tokens computed again, and output tokens",
                 "lower", "run", "one per run", _wasted_work)  # fmt: skip
    yield Metric(WASTED_TOKENS, "share", "output tokens of measured requests that did not finish / all of them",
                 "lower", "run", "one per run", _wasted_tokens)  # fmt: skip
