"""Every combination of primary and guards against the table, written out independently."""

from itertools import product

import pytest

from scheduler_core.verdict.decision import rule
from scheduler_core.verdict.schema import Decision, Gate

# Primary as the table's left column names it: (label, state).
PRIMARIES = {
    "better than m": ("better", "passed"),
    "better than 0": ("better", "undecided"),
    "undecided": ("same", "undecided"),
    "within m": ("same", "failed"),
    "worse": ("worse", "failed"),
    "missing": ("missing", "missing"),
}
GUARDS = {"passed": "same", "undecided": "same", "failed": "worse", "missing": "missing"}


def gate(metric: str, role: str, label: str, state: str) -> Gate:
    return Gate.model_validate(
        {"metric": metric, "role": role, "unit": "ms", "better": "lower", "margin": 0.1, "baseline": 1.0,
         "candidate": 1.0, "change": 0.0, "interval": None, "label": label, "state": state, "sentence": ""}
    )  # fmt: skip


def expected(primary: str, latency: str, throughput: str, pairs: int) -> Decision:
    """The table of the evidence contract, row by row; the primary is a latency."""
    if "missing" in (primary, latency, throughput) or pairs < 5:
        return Decision.TUNE
    if primary in ("within m", "worse"):
        return Decision.REJECT
    if primary in ("better than 0", "undecided"):
        return Decision.TUNE
    if latency == "failed":
        return Decision.REJECT
    if throughput == "failed" or "undecided" in (latency, throughput):
        return Decision.TUNE
    return Decision.ACCEPT


CASES = list(product(PRIMARIES, GUARDS, GUARDS, (1, 4, 5, 20)))


@pytest.mark.parametrize("pairs", [1, 4, 5, 20])
def test_every_row(pairs: int) -> None:
    for name, latency, throughput, count in CASES:
        if count != pairs:
            continue
        primary = gate("ttft_p95_ms", "primary", *PRIMARIES[name])
        guards = [
            gate("tpot_p95_ms", "guard", GUARDS[latency], latency),
            gate("goodput_rps", "guard", GUARDS[throughput], throughput),
        ]
        found = rule(primary, guards, pairs=pairs, exact=False)
        assert found.decision == expected(name, latency, throughput, pairs), (name, latency, throughput, pairs)
        assert found.reason


def test_a_throughput_primary_is_rejected_by_any_broken_latency() -> None:
    primary = gate("throughput_tokens_per_s", "primary", "better", "passed")
    found = rule(primary, [gate("ttft_p95_ms", "guard", "worse", "failed")], pairs=5, exact=False)
    assert found.decision is Decision.REJECT


def test_exact_runs_need_no_repeats() -> None:
    primary = gate("ttft_p95_ms", "primary", "better", "passed")
    assert rule(primary, [], pairs=1, exact=True).decision is Decision.ACCEPT
