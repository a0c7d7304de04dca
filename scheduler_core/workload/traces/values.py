"""Single values of a trace row, read exactly: no float seconds, no guessed types."""

import re
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal

from scheduler_core.types.time import NS_PER_MS, NS_PER_S, NS_PER_US, Ns
from scheduler_core.workload.slots import LATEST_NS, MOST_TOKENS

UNITS_NS = {"s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1}

MOST_BLOCK_ID = 2**63 - 1

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_CLOCK = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)


class RowError(Exception):
    """Why a row cannot be used, in words that follow "line 17:"."""


def show(value: object) -> str:
    """A value as an error message quotes it: escaped and not too long."""
    text = str(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def number(name: str, value: object, *, text: bool) -> int | Decimal:
    """A finite number; ``text`` says that the file has no types (CSV), so that digits are what is expected."""
    if value is None:
        raise RowError(f"{name} is missing")
    if text:
        return _number_of_text(name, str(value).strip())
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise RowError(f"{name} is {value}, which is not a finite number")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RowError(f"{name} is {show(value)}, which is not a number")


def _number_of_text(name: str, value: str) -> int | Decimal:
    if not value:
        raise RowError(f"{name} is missing")
    if len(value) <= 18 and value.isascii() and value.isdigit():
        return int(value)
    if _NOT_FINITE.fullmatch(value):
        raise RowError(f"{name} is {value}, which is not a finite number")
    if len(value) > 60 or not _NUMBER.fullmatch(value):
        raise RowError(f"{name} is {show(value)}, which is not a number")
    return Decimal(value)


def tokens(name: str, value: object, *, text: bool) -> int:
    """A count of tokens: whole (``76.0`` is), 0 or more."""
    count = number(name, value, text=text)
    if isinstance(count, Decimal):
        if count.adjusted() > 20 or count != count.to_integral_value():
            raise RowError(f"{name} is {show(count)}, which is not a whole number of tokens")
        count = int(count)
    if count < 0:
        raise RowError(f"{name} is {show(count)}; a count cannot be negative")
    if count > MOST_TOKENS:
        raise RowError(f"{name} is {show(count)}, beyond the {MOST_TOKENS:,} tokens any request may have")
    return count


def instant(name: str, value: object, unit_ns: int, *, text: bool) -> Ns:
    """A time counted in units of ``unit_ns``, as whole nanoseconds (finer digits are rounded, half to even)."""
    count = number(name, value, text=text)
    if count < 0:
        raise RowError(f"{name} is {show(count)}; a time cannot be negative")
    if isinstance(count, int):
        at = count * unit_ns
    elif count.adjusted() > 20:
        at = LATEST_NS + 1
    else:
        at = int(_CONTEXT.to_integral_value(_CONTEXT.multiply(count, Decimal(unit_ns))))
    if at > LATEST_NS:
        raise RowError(f"{name} is {show(count)}, later than a run can be (146 years); is the unit right?")
    return at


def clock(name: str, value: object, *, zoned: bool) -> Ns:
    """A wall-clock time with up to nine fraction digits, as nanoseconds since 1970 (in UTC when ``zoned``)."""
    text = str(value).strip() if value is not None else ""
    if not text:
        raise RowError(f"{name} is missing")
    match = _CLOCK.fullmatch(text)
    if not match:
        raise RowError(f"{name} is {show(text)}, not a time like 2023-11-16 18:15:46.6805900")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    zone = match[8]
    if (zone is not None) != zoned:
        had, expected = ("a zone", "none (azure-2023)") if zone else ("no zone", "one (azure-2024)")
        raise RowError(f"{name} is {show(text)}, with {had} where this format has {expected}")
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise RowError(f"{name} is {show(text)}: {error}") from None
    if hour > 23 or minute > 59 or second > 59 or not 1970 <= year <= 2200:
        raise RowError(f"{name} is {show(text)}, which no clock shows")
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset_s(zone)
    return seconds * NS_PER_S + int((match[7] or "0").ljust(9, "0"))


def _offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -offset if zone[0] == "-" else offset


def block_ids(name: str, value: object, *, text: bool) -> tuple[int, ...]:
    """Prefix block ids: a JSON list of whole numbers, or in CSV numbers separated by spaces or semicolons."""
    if text:
        parts = str(value or "").strip("[] ").replace(";", " ").replace(",", " ").split()
        if any(not (part.isascii() and part.isdigit() and len(part) <= 19) for part in parts):
            raise RowError(f"{name} is {show(value)}, not whole numbers separated by spaces")
        ids: list[object] = [int(part) for part in parts]
    elif isinstance(value, list):
        ids = value
    else:
        raise RowError(f"{name} is {'missing' if value is None else show(value)}, not a list of block ids")
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= MOST_BLOCK_ID:
            raise RowError(f"{name} holds {show(item)}, which is not a block id (a whole number from 0 to 2**63 - 1)")
    return tuple(ids)  # type: ignore[arg-type]  # each was just checked


def row_ids(name: str, value: object, *, text: bool) -> tuple[str, ...]:
    """Ids of other rows: in CSV separated by spaces or semicolons, else one or a list; empty where there are none."""
    if value is None:
        return ()
    if text:
        values: list[object] = list(str(value).replace(";", " ").split())
    else:
        values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(label(name, item) for item in values))


def label(name: str, value: object) -> str:
    """The name of a tenant, tier or session."""
    text = "" if value is None else str(value).strip()
    if not text or len(text) > 64 or not text.isprintable():
        raise RowError(f"{name} is {show(value)}; a name has 1 to 64 printable characters")
    return text
