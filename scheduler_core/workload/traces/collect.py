"""Collecting rows: values into columns, and every reason why a row cannot be taken."""

from array import array
from collections.abc import Mapping
from typing import Any, Literal

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.traces.data import NOT_SAID, Rejected
from scheduler_core.workload.traces.layouts import NAMED, Layout
from scheduler_core.workload.traces.parents import ParentColumn
from scheduler_core.workload.traces.values import RowError, block_ids, clock, instant, label, number, show, tokens

MOST_PROBLEMS = 50
"""Problems listed one by one; further lines are counted."""


class LabelColumn:
    """A column of names being filled."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.codes = array("q")

    def add(self, name: str) -> None:
        self.codes.append(self.numbers.setdefault(name, len(self.numbers)))


class Collector:
    """Columns of the rows read so far, in file order, for one `Layout`."""

    def __init__(self, layout: Layout, zero_output: Literal["drop", "one"]) -> None:
        self.layout = layout
        self.arrivals, self.prompts, self.outputs = array("q"), array("q"), array("q")
        self.tenants, self.tiers = LabelColumn(), LabelColumn()
        self.sessions, self.turns = array("q"), array("q")
        self.block_ids, self.block_starts = array("q"), array("q", [0])
        self.cached = array("q")
        self.parents = ParentColumn(layout) if layout.columns.parents else None
        self.rows = 0
        self.zero_output_rows = 0
        self.rejected: list[Rejected] = []
        self._zero_output = zero_output
        self._text = layout.container == "csv"
        self._problems: list[Problem] = []
        self._refused = 0
        self._last_refused = 0
        self._misfits: dict[int, int] = {}
        self._misfit_rows = 0
        self._session_of: dict[object, tuple[int, int]] = {}
        self._session_count = 0

    def add(self, line: int, values: Mapping[str, Any] | RowError) -> None:
        """Take one row, or note why not."""
        self.rows += 1
        try:
            if isinstance(values, RowError):
                raise values
            self._take(line, values)
        except RowError as error:
            self._refused += 1
            self._last_refused = line
            if len(self._problems) < MOST_PROBLEMS:
                self._problems.append(Problem(f"line {line}", str(error)))

    def check(self) -> None:
        """Refuse the file if any row was refused, or if no row is left."""
        if self._refused:
            problems = [*self._misfit_summary(), *self._problems]
            more = self._refused - len(self._problems)
            if more:
                message = f"and {more} more lines cannot be read, the last is line {self._last_refused}"
                problems.append(Problem("file", message))
            raise InputError(problems)
        if not self.prompts:
            message = f"none of its {self.rows} rows can be played: all are without output tokens (zero_output)"
            raise InputError([Problem("file", message)])

    def _take(self, line: int, values: Mapping[str, Any]) -> None:
        columns, text = self.layout.columns, self._text
        at = self._arrival(values) if self.layout.timed else 0
        prompt = tokens(columns.prompt_tokens, values.get(columns.prompt_tokens), text=text)
        output = tokens(columns.output_tokens, values.get(columns.output_tokens), text=text)
        for name in self.layout.ones:
            if number(name, values.get(name), text=text) != 1:
                raise RowError(f"{name} is {show(values.get(name))}; a row must be one request")
        if output == 0:
            self.zero_output_rows += 1
            if prompt == 0 or self._zero_output == "drop":
                what = "no prompt and no output tokens" if prompt == 0 else "no output tokens"
                if self.parents is not None:
                    self.parents.skip(values)
                self.rejected.append(Rejected(line, f"{what} (a failed call): left out"))
                return
            output = 1
        if prompt == 0:
            raise RowError(f"{columns.prompt_tokens} is 0; an empty prompt cannot be sent")
        self._take_extras(line, values, prompt)
        self.arrivals.append(at)
        self.prompts.append(prompt)
        self.outputs.append(output)

    def _take_extras(self, line: int, values: Mapping[str, Any], prompt: int) -> None:
        """The optional columns; all are read before any is kept."""
        columns = self.layout.columns
        tenant = label(columns.tenant, values.get(columns.tenant)) if columns.tenant else None
        tier = label(columns.tier, values.get(columns.tier)) if columns.tier else None
        ids = self._ids(values, prompt) if columns.prefix_blocks else None
        cached = self._cached(values, prompt) if columns.cached_tokens else None
        if self.parents is not None:
            self.parents.add(line, values)
        if self.layout.has_sessions:
            session, turn = self._session(values)
            self.sessions.append(session)
            self.turns.append(turn)
        if tenant is not None:
            self.tenants.add(tenant)
        if tier is not None:
            self.tiers.add(tier)
        if cached is not None:
            self.cached.append(cached)
        if ids is not None:
            self.block_ids.extend(ids)
            self.block_starts.append(len(self.block_ids))

    def _arrival(self, values: Mapping[str, Any]) -> int:
        name, layout = self.layout.columns.arrival, self.layout
        value = values.get(name)
        if layout.time in ("clock", "zoned clock"):
            return clock(name, value, zoned=layout.time == "zoned clock")
        if layout.whole_times and not isinstance(number(name, value, text=self._text), int):
            raise RowError(
                f"{name} is {show(value)}; {layout.name} counts whole {layout.time} (a fraction is a sign of "
                "qwen-bailian, which counts seconds)"
            )
        return instant(name, value, layout.unit_ns, text=self._text)

    def _ids(self, values: Mapping[str, Any], prompt: int) -> tuple[int, ...]:
        name, size = self.layout.columns.prefix_blocks, self.layout.block_size
        assert name is not None and size is not None  # a layout has both or neither
        ids = block_ids(name, values.get(name), text=self._text)
        fits = -(-prompt // size)
        if len(ids) == fits or (len(ids) < fits and not self.layout.exact_blocks):
            return ids
        self._misfit_rows += 1
        for other in {layout.block_size for layout in NAMED.values()} - {size, None}:
            if other is not None and len(ids) == -(-prompt // other):
                self._misfits[other] = self._misfits.get(other, 0) + 1
        raise RowError(f"{prompt} prompt tokens are {fits} blocks of {size}, but {name} has {len(ids)} ids")

    def _cached(self, values: Mapping[str, Any], prompt: int) -> int:
        """Tokens found in the server's cache; `NOT_SAID` where the row does not say."""
        name = self.layout.columns.cached_tokens
        value = values.get(name) if name else None
        if name is None or value is None or str(value).strip() == "":
            return NOT_SAID
        count = tokens(name, value, text=self._text)
        if count > prompt:
            raise RowError(f"{name} is {count}, more than the {prompt} tokens of the prompt")
        return count

    def _misfit_summary(self) -> list[Problem]:
        """One problem ahead of the rows when block counts tell that the block size is another format's."""
        best = max(self._misfits, key=self._misfits.__getitem__, default=None)
        if best is None or 2 * self._misfits[best] < self._misfit_rows:
            return []
        other = next(layout for layout in NAMED.values() if layout.block_size == best)
        message = (
            f"{self._misfit_rows} of {self.rows} rows do not fit {self.layout.block_size}-token blocks; "
            f"{self._misfits[best]} of them fit {best}-token blocks, as in {other.name} ({other.unit_words})"
        )
        return [Problem("block_size", message)]

    def _session(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """Session number and turn; (-1, 0) where a row has none."""
        if self.layout.chat is not None:
            return self._chat_session(values)
        name = self.layout.columns.session
        key = values.get(name) if name else None
        if name is None or key is None or str(key).strip() == "":
            return -1, 0
        session, _ = self._session_of.setdefault(label(name, key), (len(self._session_of), 0))
        return session, 0

    def _chat_session(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """The session of the chat before, or a new one for a first turn (or one whose earlier turns lie elsewhere)."""
        assert self.layout.chat is not None
        own, parent, turn = (
            _whole(name, values.get(name))
            for name in (self.layout.chat.own, self.layout.chat.parent, self.layout.chat.turn)
        )
        if turn < 0:
            raise RowError(f"{self.layout.chat.turn} is {turn}; turns count from 1")
        if own in self._session_of:
            raise RowError(f"{self.layout.chat.own} {own} has come before; it must be unique")
        session, _ = self._session_of.get(parent, (self._session_count, 0))
        self._session_count += session == self._session_count
        self._session_of[own] = (session, turn)
        return session, turn


def _whole(name: str, value: Any) -> int:
    count = number(name, value, text=False)
    if not isinstance(count, int):
        raise RowError(f"{name} is {show(value)}, not a whole number")
    return count
