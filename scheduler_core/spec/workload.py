"""The workload spec: who asks, when, how much, and what they were promised."""

import re
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from scheduler_core.spec.base import Name, PositiveFloat, PositiveInt, Seed, Share, Spec, require_one
from scheduler_core.spec.isolation import Others
from scheduler_core.types.patience import Patience, Promise
from scheduler_core.types.time import NS_PER_MS, ns_from_ms

TraceFormat = Literal[
    "azure-2023",
    "azure-2024",
    "azure-2025",
    "mooncake",
    "qwen-bailian",
    "burstgpt",
    "vidur",
    "splitwise",
    "llmservingsim",
    "csv",
    "jsonl",
]
TRACE_FORMATS: tuple[str, ...] = get_args(TraceFormat)

_MOST_REQUESTS = 10_000_000


# --- arrivals -------------------------------------------------------------------------------------------------------


class Constant(Spec):
    """Requests at equal distances."""

    rate_rps: PositiveFloat = Field(description="Requests per second.")


class Poisson(Spec):
    """Independent requests: exponential gaps."""

    rate_rps: PositiveFloat = Field(description="Mean requests per second.")


class Gamma(Spec):
    """Gamma gaps; burstiness below 1 is burstier than Poisson, above 1 more even (1 is Poisson)."""

    rate_rps: PositiveFloat = Field(description="Mean requests per second.")
    burstiness: float = Field(1.0, ge=0.01, le=100, description="Shape of the gamma gaps; 1 is Poisson, 0.25 bursty.")


class Closed(Spec):
    """Closed loop: a fixed number of users, each sending the next request after the answer and a think time."""

    concurrency: PositiveInt = Field(description="Users sending at the same time.")
    think_s: float = Field(0.0, ge=0, le=86_400, description="Seconds between an answer and that user's next request.")


class Ramp(Spec):
    """Poisson arrivals whose rate rises or falls linearly."""

    from_rps: float = Field(ge=0, description="Rate at the start, requests per second.")
    to_rps: float = Field(ge=0, description="Rate at the end, requests per second.")
    over_s: PositiveFloat = Field(description="Seconds the ramp takes; afterwards the end rate holds.")

    @model_validator(mode="after")
    def _some_rate(self) -> Self:
        if self.to_rps == 0:
            raise ValueError("to_rps must be above 0, else the last requests never arrive")
        return self


class Stage(Spec):
    """One level of a step profile."""

    rate_rps: float = Field(ge=0, description="Requests per second in this stage; 0 is silence.")
    for_s: PositiveFloat = Field(description="Seconds this stage lasts.")


class Step(Spec):
    """Poisson arrivals at levels held for a time each; the last level holds to the end."""

    stages: tuple[Stage, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _last_rate(self) -> Self:
        if self.stages[-1].rate_rps == 0:
            raise ValueError("the last stage needs a rate above 0, else the last requests never arrive")
        return self


class Quantiles(Spec):
    """An empirical distribution as equally spaced quantiles, from minimum to maximum, linear between them."""

    values: tuple[float, ...] = Field(min_length=2, max_length=1001, description="Quantiles, non-decreasing.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if any(b < a for a, b in zip(self.values, self.values[1:], strict=False)) or self.values[0] < 0:
            raise ValueError("values must be 0 or more and never fall")
        return self


class QuantileGaps(Spec):
    """Gaps drawn from a quantile table, scaled to a rate: the shape of a trace without its rows."""

    gaps: Quantiles = Field(description="Quantiles of the gaps between arrivals, any unit: only the shape counts.")
    rate_rps: PositiveFloat = Field(description="Mean requests per second after scaling.")

    @model_validator(mode="after")
    def _some_gap(self) -> Self:
        if self.gaps.values[-1] == 0:
            raise ValueError("gaps are all 0, so they cannot be scaled to a rate")
        return self


class Arrivals(Spec):
    """When requests come: exactly one of these."""

    constant: Constant | None = None
    poisson: Poisson | None = None
    gamma: Gamma | None = None
    closed: Closed | None = None
    ramp: Ramp | None = None
    step: Step | None = None
    quantiles: QuantileGaps | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        return require_one(self)


# --- lengths --------------------------------------------------------------------------------------------------------


class Uniform(Spec):
    """Whole numbers from ``low`` to ``high``, both included, equally likely."""

    low: PositiveInt
    high: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) must not be below low ({self.low})")
        return self


class Lognormal(Spec):
    """Lognormal, given by its own mean and standard deviation (not those of the logarithm)."""

    mean: PositiveFloat
    stdev: float = Field(ge=0)
    maximum: PositiveInt | None = Field(None, description="Longer draws are cut to this.")


class Length(Spec):
    """How many tokens: exactly one of these; a draw is rounded and is at least 1."""

    fixed: PositiveInt | None = None
    uniform: Uniform | None = None
    lognormal: Lognormal | None = None
    quantiles: Quantiles | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        return require_one(self)


class Lengths(Spec):
    """Prompt and output lengths."""

    prompt: Length
    output: Length
    scale: float = Field(
        1.0, gt=0, le=100, description="Both lengths are multiplied by this, then rounded, at least 1."
    )


# --- traces ---------------------------------------------------------------------------------------------------------


def _rows(value: str) -> str:
    match = re.fullmatch(r"(\d+)-(\d+)", value)
    if not match or int(match[1]) < 1 or int(match[2]) < int(match[1]):
        raise ValueError(f'{value!r} is not a range of rows; write the first and last row, such as "1-60"')
    return value


class Columns(Spec):
    """Which column of a plain CSV or JSONL file holds what."""

    arrival: str = "arrival_s"
    prompt_tokens: str = "prompt_tokens"
    output_tokens: str = "output_tokens"
    tenant: str | None = None
    tier: str | None = None
    session: str | None = None
    prefix_blocks: str | None = None
    cached_tokens: str | None = Field(
        None, description="Prompt tokens that the server found in its prefix cache: shown beside what a replay finds."
    )
    id: str | None = Field(None, description="A name of the row, by which others wait for it.")
    parents: str | None = Field(
        None,
        description="Ids of the rows that must have ended before this one is sent: a list in JSON lines, separated by "
        "spaces or semicolons in CSV. Its arrival then only tells its place.",
    )
    think: str | None = Field(None, description="Time between the last parent's end and this row, in time_unit.")

    @model_validator(mode="after")
    def _ids_for_parents(self) -> Self:
        if self.parents is not None and self.id is None:
            raise ValueError("parents: they are named by id; say which column holds it")
        if self.think is not None and self.parents is None:
            raise ValueError("think: it counts from the end of parents; say which column holds them")
        return self


class Trace(Spec):
    """Arrivals and lengths from a trace file.

    The two rules that readers elsewhere get silently wrong, unit and block size, come with the named formats and
    must be written for plain files.
    """

    file: str | None = Field(None, description="Path of a trace file; local play and the command line only.")
    dataset: str | None = Field(None, description="Id of an imported trace.")
    format: TraceFormat | None = Field(None, description="Format of the file; found out from its first rows if absent.")
    columns: Columns | None = Field(None, description="Column names of a csv or jsonl file.")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="Unit of the arrival column.")
    block_size: PositiveInt | None = Field(None, description="Tokens per prefix block id.")
    same_instant: Literal["keep", "spread"] = Field(
        "keep",
        description="Rows with one time: keep them together, or spread them evenly to the next time.",
    )
    zero_output: Literal["drop", "one"] = Field(
        "drop", description="Rows without output tokens (failed calls): drop them, or ask for one token."
    )
    rows: Annotated[str, AfterValidator(_rows)] | None = Field(
        None, description='Usable rows to play, in time order, such as "1-60".'
    )
    rate_rps: PositiveFloat | None = Field(
        None, description="Stretch time so that the mean rate of the played rows is this."
    )
    lengths_scale: float = Field(1.0, gt=0, le=100, description="Multiply all lengths by this, at least 1 token.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.dataset is None):
            raise ValueError("give either file (a path) or dataset (the id of an imported trace)")
        return self


# --- people and promises --------------------------------------------------------------------------------------------


class Line(Spec):
    """A limit that grows with the prompt: ``base + per_token * uncached prompt tokens``, in ms."""

    base: float = Field(ge=0)
    per_token: float = Field(0.0, ge=0)


_LINE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*\+\s*(\d+(?:\.\d+)?)\s+per uncached token\s*")


class Tier(Spec):
    """A service tier: its share of the requests and its objectives (a tier without any counts finished requests)."""

    share: Share = 1.0
    ttft_ms: float | str | None = Field(None, description='A limit in ms, or "200 + 0.5 per uncached token".')
    tpot_ms: float | None = Field(None, gt=0)
    e2e_ms: float | None = Field(None, gt=0)
    priority: int = Field(0, ge=-1000, le=1000, description="Smaller is served first by priority policies.")
    queue_timeout_ms: PositiveFloat | None = Field(
        None, description="A request that has not begun to run this long after its arrival ends timed out."
    )
    timeout_ms: PositiveFloat | None = Field(
        None, description="A request that has not ended this long after its arrival ends timed out."
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if isinstance(self.ttft_ms, str) and not _LINE.fullmatch(self.ttft_ms):
            raise ValueError(f'ttft_ms: {self.ttft_ms!r} is neither a number nor like "200 + 0.5 per uncached token"')
        if isinstance(self.ttft_ms, float) and self.ttft_ms <= 0:
            raise ValueError(f"ttft_ms: {self.ttft_ms:g} is not a limit; write ms above 0, or leave it out")
        queue, total = self.queue_timeout_ms, self.timeout_ms
        if queue is not None and total is not None and queue > total:
            raise ValueError(
                f"queue_timeout_ms ({queue:g}) is above timeout_ms ({total:g}), so it could never pass; make it "
                "smaller, or leave it out"
            )
        return self

    def promise(self) -> Promise:
        """What requests of this tier were promised."""
        line = self.ttft_line()
        return Promise(
            ttft_ns=None if line is None else ns_from_ms(line.base),
            ttft_token_ns=0.0 if line is None else line.per_token * NS_PER_MS,
            tpot_ns=None if self.tpot_ms is None else ns_from_ms(self.tpot_ms),
            e2e_ns=None if self.e2e_ms is None else ns_from_ms(self.e2e_ms),
        )

    def patience(self) -> Patience | None:
        """How long a request of this tier may take; None without a limit."""
        if self.queue_timeout_ms is None and self.timeout_ms is None:
            return None
        queue, total = self.queue_timeout_ms, self.timeout_ms
        return Patience(None if queue is None else ns_from_ms(queue), None if total is None else ns_from_ms(total))

    def ttft_line(self) -> Line | None:
        """The TTFT objective as a line, or None when there is none."""
        if isinstance(self.ttft_ms, str):
            match = _LINE.fullmatch(self.ttft_ms)
            assert match is not None  # validated above
            return Line(base=float(match[1]), per_token=float(match[2]))
        return None if self.ttft_ms is None else Line(base=self.ttft_ms)


class Tenant(Spec):
    """Who sends: a tenant's share of the requests."""

    share: Share = 1.0


class Prefix(Spec):
    """Shared prompt beginnings: ``share`` of the requests start with one of ``groups`` common prefixes.

    The prefix is part of the drawn prompt length, not added to it: a prompt shares as many whole blocks as both it and
    the prefix fill. With sessions it is drawn once a conversation.
    """

    groups: PositiveInt = Field(1, le=1_000_000, description="Different prefixes, equally likely.")
    tokens: PositiveInt = Field(256, le=10_000_000, description="Length of each prefix, whole blocks of it are shared.")
    share: Share = Field(1.0, description="Share of the requests that start with a common prefix.")


class Sessions(Spec):
    """Multi-turn conversations: each next turn waits for the answer and a think time, and repeats all before it.

    ``lengths.prompt`` is then what each turn adds. The arrivals place the first turns, so thinned that first and
    later turns together have the declared mean rate; in a closed loop each user holds one conversation after another.
    """

    turns: Length = Field(Length(fixed=3), description="Turns of one conversation.")
    think_s: float = Field(1.0, ge=0, le=86_400, description="Seconds between an answer and the next turn.")


class Cancels(Spec):
    """Clients that give up: ``share`` of the requests is cancelled, at a moment drawn evenly between two times.

    A request that has ended by then is not touched.
    """

    share: Share = Field(0.1, description="Share of the requests whose client gives up.")
    from_ms: float = Field(0.0, ge=0, le=86_400_000, description="Earliest moment, after the request's arrival.")
    to_ms: float = Field(10_000.0, ge=0, le=86_400_000, description="Latest moment, after the request's arrival.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.to_ms < self.from_ms:
            raise ValueError(f"to_ms ({self.to_ms:g}) must not be below from_ms ({self.from_ms:g})")
        return self


class WorkloadSpec(Spec):
    """Traffic, complete: freezing it gives the same arrival plan on every machine.

    Either ``trace``, or ``profile`` (bundled shape), or ``arrivals`` with ``lengths``.
    """

    trace: Trace | None = None
    profile: str | None = Field(None, description="A bundled shape of lengths and gaps, such as azure-2023-conv.")
    arrivals: Arrivals | None = None
    lengths: Lengths | None = None
    lengths_scale: float = Field(1.0, gt=0, le=100, description="With profile: multiply its lengths by this.")
    rate_rps: PositiveFloat | None = Field(None, description="With profile: mean requests per second.")
    requests: PositiveInt | None = Field(None, le=_MOST_REQUESTS, description="How many requests to offer.")
    samples: PositiveInt | None = Field(
        None,
        le=128,
        description="Answers to each prompt, as n of the OpenAI API: so many requests at one moment, of one length, "
        "cancelled together, each drawn with a seed of its own. Requests and rates then count prompts. Absent: 1.",
    )
    tiers: dict[Name, Tier] = Field(default_factory=lambda: {"default": Tier()}, min_length=1, max_length=16)
    tenants: dict[Name, Tenant] = Field(default_factory=lambda: {"default": Tenant()}, min_length=1, max_length=64)
    prefix: Prefix | None = None
    sessions: Sessions | None = None
    cancels: Cancels | None = None
    others: Others | None = Field(
        None, description="Play one tenant or tier with more, fewer or no requests of everybody else."
    )
    output_limit: PositiveInt | Literal["longest", "exact"] = Field(
        "longest",
        description="The max_tokens that each request declares: a number, the longest output of the workload, or "
        "its own true length (exact: only for study, schedulers then know what they cannot know).",
    )
    warmup_share: Share = Field(0.0, description="First share of the requests, by arrival, that is not measured.")
    block_size: PositiveInt = Field(16, description="Tokens per prefix block id of generated prefixes.")
    seed: Seed = 0

    @model_validator(mode="after")
    def _complete(self) -> Self:
        sources = [name for name in ("trace", "profile", "arrivals") if getattr(self, name) is not None]
        if len(sources) != 1:
            given = " and ".join(sources) or "nothing"
            raise ValueError(f"give exactly one of trace, profile, or arrivals with lengths; got {given}")
        if self.arrivals is not None and self.lengths is None:
            raise ValueError("arrivals needs lengths beside it")
        if self.arrivals is None and self.lengths is not None:
            raise ValueError("lengths belongs to arrivals; a trace or profile brings its own (see lengths_scale)")
        if self.trace is None and self.requests is None:
            raise ValueError("requests is missing: say how many to offer")
        if (self.requests or 0) * (self.samples or 1) > _MOST_REQUESTS:
            raise ValueError(
                f"samples ({self.samples}) of {self.requests:,} prompts are over {_MOST_REQUESTS:,} requests; use fewer"
            )
        self._check_profile_fields()
        if self.trace is not None and self.sessions is not None:
            raise ValueError("sessions cannot be added to a trace: its rows have their own times")
        if self.prefix is not None and self.prefix.tokens < self.block_size:
            raise ValueError(
                f"prefix.tokens ({self.prefix.tokens}) is below block_size ({self.block_size}): only whole blocks are "
                "shared, so nothing would be"
            )
        for field, shares in (("tiers", self.tiers), ("tenants", self.tenants)):
            total = sum(item.share for item in shares.values())
            if abs(total - 1) > 1e-6:
                raise ValueError(f"{field}: the shares add up to {total:g}, they must add up to 1")
        return self

    def _check_profile_fields(self) -> None:
        """A rate or scale that would be ignored is an error, not a surprise."""
        if self.profile is not None:
            if self.rate_rps is None:
                raise ValueError("rate_rps is missing: a profile has a shape, not a rate")
            return
        where = "trace" if self.trace is not None else "arrivals"
        if self.rate_rps is not None:
            raise ValueError(f"rate_rps belongs to profile; here the rate is in {where}")
        if self.lengths_scale != 1.0:
            right = "trace.lengths_scale" if self.trace is not None else "lengths.scale"
            raise ValueError(f"lengths_scale belongs to profile; here it is {right}")
