"""Requests drawn from fitted clients, in the form of ServeGen (github.com/alibaba/ServeGen, Apache-2.0).

A client is two files: ``NAME-trace.csv`` without a header (start of a window in s, requests/s, coefficient of variation
of the gaps, name of their distribution, two parameters) and ``NAME-dataset.json`` (or ``.json.gz``), histograms of
prompt and output lengths by start of a longer window. The same files, span and seed give the same requests everywhere.
"""

import ast
import csv
import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S, Ns
from scheduler_core.workload.distributions import UNIT, Table, exact, gamma, weibull
from scheduler_core.workload.logs.rows import LoggedRequest
from scheduler_core.workload.uniform import BITS, Stream

_RATES, _LENGTHS = "-trace.csv", "-dataset.json"
_SHAPES = {"Gamma": gamma, "Weibull": weibull}
_STEPS = 20
"""Shapes of gap distributions are rounded to 1 / 20: each takes a table of its own."""

_WEIGHT = 1 << 48
_NO_HISTOGRAMS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RecursionError, SyntaxError,
    TypeError, ValueError, zlib.error,
)  # fmt: skip
"""What reading anything else ends in; `ast.literal_eval` runs out of memory where text nests too deep."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is drawn: ``length_s`` seconds from ``start_s`` of the clients' own time, at ``scale`` times their rates."""

    start_s: int
    length_s: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Window:
    """From ``start_s`` on, until the next window: requests/s and the distribution of gaps, mean 1; None at rate 0."""

    start_s: int
    rate: Fraction
    gaps: tuple[str, float] | None

    def table(self) -> Table:
        """The distribution of gaps."""
        assert self.gaps is not None  # only asked for where requests come
        name, shape = self.gaps
        return _SHAPES[name](max(1, round(shape * _STEPS)) / _STEPS)


@dataclass(frozen=True)
class Histogram:
    """Lengths in tokens with their weights."""

    lengths: tuple[int, ...]
    weights: tuple[int, ...]

    @cached_property
    def _sums(self) -> list[int]:
        return list(accumulate(self.weights))

    def at(self, draw: int) -> int:
        """The length of a uniform draw in [0, 2**64)."""
        return self.lengths[bisect_right(self._sums, draw * self._sums[-1] >> BITS)]


@dataclass(frozen=True)
class Client:
    """One client: windows in order of time, and (prompt, output) histograms by the second from which they hold."""

    name: str
    windows: tuple[Window, ...]
    lengths: Mapping[int, tuple[Histogram, Histogram]]

    def requests(self, span: Span, seed: int) -> Iterator[LoggedRequest]:
        """Requests in order of arrival, times counted from the start of ``span``."""
        prompts, outputs = Stream(seed, f"{self.name} prompt"), Stream(seed, f"{self.name} output")
        for number, at_ns in enumerate(self._arrivals(span, Stream(seed, f"{self.name} gap"))):
            prompt, output = self._lengths(span.start_s + at_ns // NS_PER_S)
            yield LoggedRequest(at_ns, prompt.at(prompts.at(number)), output.at(outputs.at(number)), tenant=self.name)

    def expected(self, span: Span) -> float:
        """How many requests ``span`` brings on average."""
        return sum(float(window.rate) * (stop - start) for window, start, stop in self._within(span)) * span.scale

    def _arrivals(self, span: Span, stream: Stream) -> Iterator[Ns]:
        """Unit gaps laid along the cumulative rate, each of the window in which the gap begins."""
        due, number, done = None, 0, Fraction(0)
        for window, start_s, stop_s in self._within(span):
            rate = window.rate * exact(span.scale)
            if not rate:
                continue
            end = done + rate * (stop_s - start_s)
            if due is None:
                due = _gap(window, stream, 0)
            while due < end:
                yield int(((due - done) / rate + start_s - span.start_s) * NS_PER_S)
                number += 1
                due += _gap(window, stream, number)
            done = end

    def _within(self, span: Span) -> Iterator[tuple[Window, int, int]]:
        stop = span.start_s + span.length_s
        ends = [*(window.start_s for window in self.windows[1:]), stop]
        for window, end in zip(self.windows, ends, strict=True):
            start_s, stop_s = max(window.start_s, span.start_s), min(end, stop)
            if start_s < stop_s:
                yield window, start_s, stop_s

    def _lengths(self, at_s: int) -> tuple[Histogram, Histogram]:
        """The histograms that hold at a time: the newest begun that are not empty, else the first."""
        starts = sorted(self.lengths)
        return self.lengths[starts[max(0, bisect_right(starts, at_s) - 1)]]


def _gap(window: Window, stream: Stream, number: int) -> Fraction:
    return Fraction(window.table().at(stream.at(number)), UNIT)


def read_clients(folder: Path) -> list[Client]:
    """The clients of a folder, by name.

    Raises:
        InputError: naming the file, and the line or window, that cannot be read, or the file that is missing.
    """
    found = sorted(path.name.removesuffix(_RATES) for path in folder.glob(f"*{_RATES}"))
    if not found:
        raise InputError([Problem(str(folder), f"holds no client: no file NAME{_RATES}")])
    return [Client(name, _windows(folder / f"{name}{_RATES}"), _histograms(folder, name)) for name in found]


def draw_requests(clients: Sequence[Client], span: Span, *, seed: int) -> list[LoggedRequest]:
    """Requests of all clients together, in order of arrival."""
    found = [request for client in clients for request in client.requests(span, seed)]
    return sorted(found, key=lambda request: request.arrival_ns)


def _windows(path: Path) -> tuple[Window, ...]:
    windows: list[Window] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                windows.append(_next_window(row, windows, f"{path.name} line {number}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError([Problem(path.name, f"cannot be read: {error}")]) from None
    if not windows:
        raise InputError([Problem(path.name, "has no windows")])
    return tuple(windows)


def _next_window(row: Sequence[str], before: Sequence[Window], place: str) -> Window:
    try:
        window = _window(row)
    except (ValueError, IndexError):
        message = "is not: start of window (s), requests/s, variation, Gamma or Weibull, two parameters"
        raise InputError([Problem(place, message)]) from None
    if before and window.start_s <= before[-1].start_s:
        raise InputError([Problem(place, "windows must begin one after the other")])
    return window


def _window(row: Sequence[str]) -> Window:
    start_s, rate = int(row[0]), exact(float(row[1]))
    if rate < 0 or start_s < 0:
        raise ValueError(rate)
    if not rate:
        return Window(start_s, rate, None)
    name, shape = row[3], float(row[4])
    if name not in _SHAPES or not 0 < shape < 1e6:
        raise ValueError(name)
    return Window(start_s, rate, (name, shape))


def _histograms(folder: Path, name: str) -> dict[int, tuple[Histogram, Histogram]]:
    plain, packed = folder / f"{name}{_LENGTHS}", folder / f"{name}{_LENGTHS}.gz"
    if not plain.is_file() and not packed.is_file():
        raise InputError([Problem(plain.name, f"is missing beside {name}{_RATES}")])
    path = plain if plain.is_file() else packed
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path == packed else raw)
        found = {int(start): _pair(window) for start, window in data.items()}
    except _NO_HISTOGRAMS as error:
        message = f"is not an object of windows with input_tokens and output_tokens: {error}"
        raise InputError([Problem(path.name, message)]) from None
    usable = {start: pair for start, pair in found.items() if pair is not None}
    if not usable:
        raise InputError([Problem(path.name, "has no window with lengths")])
    return usable


def _pair(window: Mapping[str, Any]) -> tuple[Histogram, Histogram] | None:
    prompt, output = _histogram(window["input_tokens"]), _histogram(window["output_tokens"])
    return None if prompt is None or output is None else (prompt, output)


def _histogram(text: Any) -> Histogram | None:
    """A histogram written as a Python dictionary in a string; None when it is empty."""
    data = ast.literal_eval(text) if isinstance(text, str) else text
    weighed = {max(1, int(length)): round(float(share) * _WEIGHT) for length, share in sorted(data.items())}
    kept = {length: weight for length, weight in weighed.items() if weight > 0}
    return Histogram(tuple(kept), tuple(kept.values())) if kept else None
