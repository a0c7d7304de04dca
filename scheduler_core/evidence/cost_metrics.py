"""What a run cost, where its target has a price: per million valid tokens, and what went into requests that failed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler_core.evidence.metric import Metric, absent, present
from scheduler_core.evidence.run_tables import RunTables, instances_of
from scheduler_core.evidence.schema import Absence, Figure

COST = "cost_per_million_tokens"
_UNIT = "currency"


def price_per_hour(target: Mapping[str, Any], devices: int) -> float | None:
    """Price of an hour on ``target`` with ``devices`` of its devices; None where none was declared.

    A server's price is the sum over its sources, all of which must have one.
    """
    (kind, chosen), *_ = [(name, value) for name, value in target.items() if isinstance(value, Mapping)] or [("", {})]
    if kind == "server":
        prices: list[Any] = [source.get("price_per_hour") for source in instances_of(chosen)]
        return sum(prices) if prices and None not in prices else None
    price = chosen.get("price_per_device_hour")
    return None if price is None else float(price) * devices


def wasted_share(run: RunTables) -> float | None:
    """Share of the output tokens of measured requests that went to requests which did not finish."""
    tokens, measured = run.requests.rows["output_tokens"], run.requests.measured
    produced = float(tokens[measured].sum())
    return float(tokens[measured & ~run.requests.finished].sum()) / produced if produced else None


def _priced(name: str, formula: str, value: Callable[[RunTables, float], float | None], why: str) -> Metric:
    """A figure in the currency of the declared price; ``why`` it may be absent in spite of a price."""

    def compute(run: RunTables) -> Figure:
        price = price_per_hour(run.started.target, run.devices)  # of all that exist; paid for is what was held
        if price is None:
            return absent(_UNIT, Absence.NOT_MEASURED, "no price was declared")
        found = value(run, price / 3600 * run.device_s / run.devices)
        return absent(_UNIT, Absence.NOT_APPLICABLE, why) if found is None else present(found, _UNIT)

    return Metric(name, _UNIT, formula, "lower", "run", "one per run", compute)


def _per_million(run: RunTables, paid: float) -> float | None:
    tokens = float(run.requests.rows["output_tokens"][run.requests.measured & run.requests.finished].sum())
    return paid / tokens * 1e6 if tokens else None


def _failures(run: RunTables, paid: float) -> float | None:
    wasted = wasted_share(run)
    return None if wasted is None else paid * wasted


def _wasted(run: RunTables) -> Figure:
    found = wasted_share(run)
    return (
        absent("share", Absence.NOT_APPLICABLE, "no token was produced") if found is None else present(found, "share")
    )


def cost_metrics() -> Iterable[Metric]:
    """All of them."""
    yield _priced(COST, "price of the devices over the measured window / output tokens of finished requests x 10^6",
                  _per_million, "nothing finished, so there is no valid token")  # fmt: skip
    yield _priced("cost_of_failures", "price of the devices over the measured window x wasted_tokens_share",
                  _failures, "no token was produced")  # fmt: skip
    yield Metric("wasted_tokens_share", "share", "output tokens of measured requests that did not finish / all of them",
                 "lower", "run", "one per run", _wasted)  # fmt: skip
