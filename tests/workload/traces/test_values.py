"""Single values: exact times, whole tokens, and the words of each refusal."""

from decimal import Decimal
from typing import Any

import pytest

from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.traces.values import RowError, block_ids, clock, instant, label, number, tokens


def test_clock_keeps_seven_digits() -> None:
    """0.0519999 s and 100 ns apart: exact, where a float of epoch seconds keeps about 240 ns."""
    first = clock("T", "2023-11-16 18:17:03.9799600", zoned=False)
    assert clock("T", "2023-11-16 18:17:04.0319599", zoned=False) - first == 51_999_900
    assert clock("T", "2023-11-16 18:17:03.9799601", zoned=False) - first == 100


def test_clock_counts_from_1970_and_applies_zones() -> None:
    assert clock("T", "1970-01-02 00:00:01", zoned=False) == 86_401 * NS_PER_S
    utc = clock("T", "2024-05-10 00:00:00+00:00", zoned=True)
    assert clock("T", "2024-05-10T02:30:00+02:30", zoned=True) == utc
    assert clock("T", "2024-05-09 19:00:00-05:00", zoned=True) == utc
    assert clock("T", "2024-05-10T00:00:00.000Z", zoned=True) == utc


@pytest.mark.parametrize(
    ("text", "zoned", "reason"),
    [
        ("", False, "T is missing"),
        (None, False, "T is missing"),
        ("yesterday", False, "T is 'yesterday', not a time like"),
        ("2023-02-30 00:00:00", False, "day is out of range"),
        ("2023-11-16 24:00:00", False, "which no clock shows"),
        ("2023-11-16 18:15:60", False, "which no clock shows"),
        ("0001-01-01 00:00:00", False, "which no clock shows"),
        ("2023-11-16 18:15:46.6805900+00:00", False, "with a zone where this format has none (azure-2023)"),
        ("2023-11-16 18:15:46.6805900", True, "with no zone where this format has one (azure-2024)"),
        ("2023-11-16 18:15:46.1234567890", False, "not a time like"),
        ("\uff12\uff10\uff12\uff13-11-16 18:15:46", False, "not a time like"),
    ],
)
def test_clock_refuses(text: str | None, zoned: bool, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        clock("T", text, zoned=zoned)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("value", "unit", "text", "expected"),
    [
        ("5", NS_PER_S, True, 5 * NS_PER_S),
        ("61.114", NS_PER_S, True, 61_114_000_000),
        ("0.1", NS_PER_S, True, 100_000_000),
        ("1.9e7", NS_PER_S, True, 19_000_000 * NS_PER_S),
        (" 7 ", 1, True, 7),
        ("1700000000.123456789", NS_PER_S, True, 1_700_000_000_123_456_789),
        ("0.0000000005", NS_PER_S, True, 0),
        ("0.0000000015", NS_PER_S, True, 2),
        (Decimal("61.114"), NS_PER_S, False, 61_114_000_000),
        (3000, 10**6, False, 3 * NS_PER_S),
    ],
)
def test_instants_are_exact(value: object, unit: int, text: bool, expected: int) -> None:
    assert instant("t", value, unit, text=text) == expected


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        (None, False, "t is missing"),
        ("", True, "t is missing"),
        ("200", False, "t is '200', which is not a number"),
        (True, False, "t is True, which is not a number"),
        ([1], False, "t is [1], which is not a number"),
        (Decimal("NaN"), False, "t is NaN, which is not a finite number"),
        (Decimal("-Infinity"), False, "t is -Infinity, which is not a finite number"),
        ("nan", True, "t is nan, which is not a finite number"),
        ("inf", True, "t is inf, which is not a finite number"),
        ("1_000", True, "t is '1_000', which is not a number"),
        ("0x10", True, "t is '0x10', which is not a number"),
        ("12,5", True, "t is '12,5', which is not a number"),
        ("\u0661\u0662", True, "which is not a number"),
        ("9" * 70, True, "which is not a number"),
        (-5, False, "t is -5; a time cannot be negative"),
        ("-0.001", True, "t is -0.001; a time cannot be negative"),
        ("1e300", True, "later than a run can be (146 years)"),
        (Decimal("1e999999"), False, "later than a run can be (146 years)"),
        (10**30, False, "later than a run can be (146 years)"),
    ],
)
def test_instant_refuses(value: Any, text: bool, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        instant("t", value, NS_PER_S, text=text)
    assert reason in str(caught.value)


def test_counts_may_be_written_with_a_point() -> None:
    """Some tools write 76.0 for 76."""
    assert tokens("n", "76.0", text=True) == 76
    assert tokens("n", Decimal("76.0"), text=False) == 76
    assert tokens("n", "0", text=True) == 0


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        ("76.5", True, "n is 76.5, which is not a whole number of tokens"),
        ("1e300", True, "which is not a whole number of tokens"),
        ("-1", True, "n is -1; a count cannot be negative"),
        (10**9, False, "beyond the 100,000,000 tokens any request may have"),
        ("200", False, "n is '200', which is not a number"),
        (None, False, "n is missing"),
    ],
)
def test_tokens_refuses(value: Any, text: bool, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        tokens("n", value, text=text)
    assert reason in str(caught.value)


def test_block_ids_of_both_containers() -> None:
    assert block_ids("b", [3, 0, 2**63 - 1], text=False) == (3, 0, 2**63 - 1)
    assert block_ids("b", "[3, 0]", text=True) == block_ids("b", "3 0", text=True) == block_ids("b", "3;0", text=True)
    assert block_ids("b", "", text=True) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, False), ("1 2", False), ([1, "2"], False), ([True], False), ([-1], False), ([2**63], False), ("1 x", True)],
)
def test_block_ids_refuse(value: Any, text: bool) -> None:
    with pytest.raises(RowError, match=r"^b "):
        block_ids("b", value, text=text)


def test_labels() -> None:
    assert label("who", " alice ") == "alice"
    for bad in (None, "", "  ", "x" * 65, "a\x00b"):
        with pytest.raises(RowError, match="a name has 1 to 64 printable characters"):
            label("who", bad)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(RowError) as caught:
        number("n", "z" * 10_000, text=True)
    assert len(str(caught.value)) < 120
