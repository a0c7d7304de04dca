"""The formats, as data: which column holds what, in which unit, with which block size, and whose work it is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from scheduler_core.spec.workload import Columns, Trace
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.traces.values import UNITS_NS

Container = Literal["csv", "jsonl"]
TimeForm = Literal["clock", "zoned clock", "s", "ms", "us", "ns"]


_UNIT_WORDS: dict[TimeForm, str] = {
    "clock": "times are wall-clock times without a zone",
    "zoned clock": "times are wall-clock times with a zone",
    "s": "times are in seconds (s)",
    "ms": "times are in milliseconds (ms)",
    "us": "times are in microseconds (us)",
    "ns": "times are in nanoseconds (ns)",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """Columns that link the turns of a conversation by the id of the turn before (-1: none)."""

    own: str
    parent: str
    turn: str


@dataclass(frozen=True, slots=True)
class Layout:
    """How one format is read.

    ``whole_times``: a fraction in the arrival column means another format. ``exact_blocks``: a row has exactly
    ``ceil(prompt / block_size)`` block ids, else at most that many. ``ones`` are columns that must hold 1,
    ``needs`` columns by which the format is told from others and which are not read.
    ``attribution`` is shown wherever something computed from such a file is.
    """

    name: str
    container: Container
    columns: Columns
    time: TimeForm
    block_size: int | None = None
    whole_times: bool = False
    exact_blocks: bool = False
    timed: bool = True
    chat: Chat | None = None
    ones: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    attribution: str = ""

    @property
    def unit_ns(self) -> int:
        """Nanoseconds in a unit of the arrival column."""
        return UNITS_NS[self.time]

    @property
    def unit_words(self) -> str:
        """The unit of the arrival column for a person."""
        return _UNIT_WORDS[self.time]

    @property
    def has_sessions(self) -> bool:
        """Whether rows belong to conversations."""
        return self.chat is not None or self.columns.session is not None

    def required(self) -> list[str]:
        """Columns without which the format is not this one."""
        columns = self.columns
        names = [columns.arrival] if self.timed else []
        names += [columns.prompt_tokens, columns.output_tokens, *self.ones]
        own = (columns.tenant, columns.tier, columns.session, columns.prefix_blocks)
        names += [name for name in (*own, columns.id, columns.parents, columns.think, columns.cached_tokens) if name]
        names += self.needs
        if self.chat is not None:
            names += [self.chat.own, self.chat.parent, self.chat.turn]
        return names


_AZURE = Columns(arrival="TIMESTAMP", prompt_tokens="ContextTokens", output_tokens="GeneratedTokens")
_HASHED = Columns(
    arrival="timestamp", prompt_tokens="input_length", output_tokens="output_length", prefix_blocks="hash_ids"
)
_VIDUR = Columns(arrival="arrived_at", prompt_tokens="num_prefill_tokens", output_tokens="num_decode_tokens")

NAMED = {
    layout.name: layout
    for layout in (
        Layout(
            "azure-2023",
            "csv",
            _AZURE,
            "clock",
            attribution="Azure Public Dataset, Azure LLM inference trace 2023 (Splitwise, ISCA 2024), CC-BY 4.0",
        ),
        Layout(
            "azure-2024",
            "csv",
            _AZURE,
            "zoned clock",
            attribution="Azure Public Dataset, Azure LLM inference trace 2024 (DynamoLLM, HPCA 2025), CC-BY 4.0",
        ),
        Layout(
            "azure-2025",
            "csv",
            _AZURE,
            "zoned clock",
            needs=("NumImages",),
            attribution="Azure Public Dataset, Azure LMM inference trace 2025 (ModServe, SoCC 2025), CC-BY 4.0",
        ),
        Layout(
            "mooncake",
            "jsonl",
            _HASHED,
            "ms",
            block_size=512,
            whole_times=True,
            exact_blocks=True,
            attribution="Mooncake traces (FAST 2025), github.com/kvcache-ai/Mooncake, Apache-2.0",
        ),
        Layout(
            "qwen-bailian",
            "jsonl",
            _HASHED,
            "s",
            block_size=16,
            exact_blocks=True,
            chat=Chat(own="chat_id", parent="parent_chat_id", turn="turn"),
            attribution="Qwen-Bailian usage traces, github.com/alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0",
        ),
        Layout(
            "burstgpt",
            "csv",
            Columns(arrival="Timestamp", prompt_tokens="Request tokens", output_tokens="Response tokens"),
            "s",
            attribution="BurstGPT (KDD 2025), github.com/HPMLL/BurstGPT, CC-BY 4.0",
        ),
        # Its pd_ratio is prefill / decode in one public file and decode / prefill in another: never read.
        Layout("vidur", "csv", _VIDUR, "s", attribution="Vidur trace form, github.com/microsoft/vidur, MIT"),
        Layout(
            "splitwise",
            "csv",
            Columns(arrival="arrival_timestamp", prompt_tokens="prompt_size", output_tokens="token_size"),
            "s",
            ones=("batch_size",),
            attribution="splitwise-sim trace form, github.com/Mutinifni/splitwise-sim, MIT",
        ),
        Layout(
            "llmservingsim",
            "jsonl",
            Columns(arrival="arrival_time_ns", prompt_tokens="input_toks", output_tokens="output_toks"),
            "ns",
            attribution="LLMServingSim workload form, github.com/casys-kaist/LLMServingSim, MIT",
        ),
    )
}

_SESSION_ID = "Session ID"


def choose(container: Container, found: Iterable[str], sample: object, trace: Trace) -> Layout:
    """The layout of a file whose first rows have the columns ``found``; `InputError` when none fits.

    ``sample`` is the first arrival value, by which the two Azure formats differ. A declared format is checked, never
    just believed.
    """
    names = list(found)
    if trace.format in ("csv", "jsonl") or (trace.format is None and trace.columns is not None):
        return _plain(container, names, trace)
    detected = _detect(container, names, sample)
    if trace.format is None:
        if detected is None and not _missing(_plain_layout(container, trace), names):
            return _plain(container, names, trace)
        if detected is None:
            raise _unknown(container, names)
        return _with_options(detected, names, trace)
    declared = NAMED[trace.format]
    if detected is None and _missing(declared, names) == [_HASHED.prefix_blocks]:
        return _with_options(_without_blocks(declared), names, trace)
    if detected is None or detected.name != declared.name:
        raise _other_format(declared, detected, container, names)
    return _with_options(declared, names, trace)


def _detect(container: Container, names: list[str], sample: object) -> Layout | None:
    fitting = [layout for layout in NAMED.values() if layout.container == container and not _missing(layout, names)]
    fitting = [
        layout for layout in fitting if not layout.name.startswith("azure") or _zoned(layout) == _has_zone(sample)
    ]
    if not fitting and container == "csv" and not _missing(replace(NAMED["vidur"], timed=False), names):
        return NAMED["vidur"]
    # Bailian has all of Mooncake's fields and more: the layout that explains most columns is meant.
    return max(fitting, key=lambda layout: len(layout.required()), default=None)


def _without_blocks(layout: Layout) -> Layout:
    """A hashed format whose file was stripped of its block ids: usable where its unit is declared, not guessed."""
    columns = layout.columns.model_copy(update={"prefix_blocks": None})
    return replace(layout, columns=columns, block_size=None, exact_blocks=False)


def _zoned(layout: Layout) -> bool:
    return layout.time == "zoned clock"


def _has_zone(sample: object) -> bool:
    text = str(sample)[10:]
    return "+" in text or "-" in text or text.endswith("Z")


def _missing(layout: Layout, names: list[str]) -> list[str]:
    return [name for name in layout.required() if name not in names]


def _with_options(layout: Layout, names: list[str], trace: Trace) -> Layout:
    """A named format's layout; a unit or block size that contradicts it is refused."""
    problems = []
    if trace.columns is not None:
        problems.append(Problem("columns", f"{layout.name} has its own columns; columns belong to csv and jsonl"))
    if trace.time_unit not in (None, layout.time):
        problems.append(Problem("time_unit", f"is {trace.time_unit}, but in {layout.name} {layout.unit_words}"))
    if trace.block_size not in (None, layout.block_size):
        own = f"{layout.block_size}-token blocks" if layout.block_size else "no prefix blocks"
        problems.append(Problem("block_size", f"is {trace.block_size}, but {layout.name} has {own}"))
    if problems:
        raise InputError(problems)
    if layout.name == "vidur" and layout.columns.arrival not in names:
        return replace(layout, timed=False)
    if layout.name == "burstgpt" and _SESSION_ID in names:
        return replace(layout, columns=layout.columns.model_copy(update={"session": _SESSION_ID}))
    return layout


def _plain_layout(container: Container, trace: Trace) -> Layout:
    name = "csv" if container == "csv" else "jsonl"
    return Layout(name, container, trace.columns or Columns(), trace.time_unit or "s", trace.block_size)


def _plain(container: Container, names: list[str], trace: Trace) -> Layout:
    layout = _plain_layout(container, trace)
    problems = []
    if trace.format is not None and trace.format != container:
        form = {"csv": "comma-separated columns under a header", "jsonl": "JSON lines"}
        problems.append(Problem("format", f"is {trace.format}, but the file has {form[container]}"))
    for name in _missing(layout, names):
        problems.append(Problem("columns", f"{name!r} is not a column of this file; it has {_list(names)}"))
    if trace.time_unit is None:
        message = f"is missing: say in which unit {layout.columns.arrival!r} counts (s, ms, us or ns)"
        problems.append(Problem("time_unit", message))
    if layout.columns.prefix_blocks is not None and trace.block_size is None:
        problems.append(Problem("block_size", "is missing: say how many tokens one prefix block id stands for"))
    if layout.columns.prefix_blocks is None and trace.block_size is not None:
        problems.append(Problem("block_size", "is given, but no column of prefix blocks is (columns.prefix_blocks)"))
    if problems:
        raise InputError(problems)
    return layout


def _unknown(container: Container, names: list[str]) -> InputError:
    kind = "a CSV file with the columns" if container == "csv" else "JSON lines with the fields"
    hint = "; its columns seem to be separated by ';', use ','" if len(names) == 1 and ";" in names[0] else ""
    message = (
        f"is {kind} {_list(names)}, which is none of {', '.join(NAMED)}{hint}; for another file give format csv or "
        "jsonl, columns and time_unit"
    )
    return InputError([Problem("format", message)])


def _other_format(declared: Layout, detected: Layout | None, container: Container, names: list[str]) -> InputError:
    if detected is not None:
        seems = f"looks like {detected.name} ({_figures(detected)})"
    else:
        kind = "a CSV file" if container == "csv" else "JSON lines"
        seems = f"is {kind} with {_list(names)}"
    missing = _missing(declared, names)
    lacks = f"; {declared.name} needs {_list(missing)} too" if missing else ""
    return InputError([Problem("format", f"is {declared.name} ({_figures(declared)}), but the file {seems}{lacks}")])


def _figures(layout: Layout) -> str:
    blocks = f", one block id is {layout.block_size} tokens" if layout.block_size else ""
    return layout.unit_words + blocks


def _list(names: list[str]) -> str:
    shown = [repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "none"
