"""What each arm paid for its valid tokens, and how much of it went into requests that failed."""

from collections.abc import Sequence

from scheduler_core.evidence.metrics.cost import COST, FAILURES, PAID
from scheduler_core.verdict.pairs import Pair
from scheduler_core.verdict.symptoms import mean
from scheduler_core.verdict.wording import digits, percent, share


def costs(pairs: Sequence[Pair]) -> list[str]:
    """Sentences in the currency of the declared price, means over runs; none where no price was declared."""
    per_million, paid, failed = ([mean([pair[side] for pair in pairs], name) for side in (0, 1)]
                                 for name in (COST, PAID, FAILURES))  # fmt: skip
    if None in paid:
        return []
    found = [f"a million valid tokens: {_both(per_million)}"]
    found.append(f"paid for devices: {_both(paid)}; of it for requests that did not finish: {_parts(failed, paid)}")
    return found


def _both(values: Sequence[float | None]) -> str:
    old, new = values
    shown = " -> ".join("none finished" if value is None else digits(value) for value in values)
    return f"{shown} ({percent(new / old - 1)})" if old and new is not None else shown


def _parts(values: Sequence[float | None], wholes: Sequence[float | None]) -> str:
    return " -> ".join(
        "not applicable" if part is None or whole is None else f"{digits(part)} ({share(part / whole if whole else 0)})"
        for part, whole in zip(values, wholes, strict=True)
    )
