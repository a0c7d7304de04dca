"""What policies may look at: numbers and read-only summaries, never the objects the planner changes."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from scheduler_core.types.plan import Phase
from scheduler_core.types.time import Ns


class SpecView(Protocol):
    """The declared part of a request."""

    @property
    def arrival_ns(self) -> Ns: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_limit(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def tier(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def foreseen(self) -> int | None:
        """The output length announced from outside, for a study of perfect knowledge; None in any other run."""


class RequestView(Protocol):
    """One request as a policy sees it. The true output length is not there to be read."""

    @property
    def id(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def run_seq(self) -> int: ...
    @property
    def spec(self) -> SpecView: ...
    @property
    def known(self) -> int: ...
    @property
    def granted(self) -> int: ...
    @property
    def emitted(self) -> int: ...
    @property
    def debt(self) -> int: ...
    @property
    def worst_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prefilling(self) -> bool: ...
    def phase(self) -> Phase:
        """What its next grant is for."""


class Beginnings(Protocol):
    """What the prefix cache has for requests that wait; asking changes nothing."""

    @property
    def block_size(self) -> int: ...

    def hit_tokens(self, request: RequestView) -> int:
        """Tokens of its beginning that are cached; never all of it."""

    def hit_keys(self, request: RequestView) -> Sequence[Hashable]:
        """Identities of the cached blocks of its beginning; equal ones mean equal beginnings up to there."""

    def keys(self, request: RequestView) -> Sequence[Hashable]:
        """As `hit_keys`, for all of its blocks that could ever be found."""


class View(Protocol):
    """State of the instance at the moment of a question; nothing is computed before it is asked for."""

    @property
    def now_ns(self) -> Ns: ...
    @property
    def budget_left(self) -> int: ...
    @property
    def decodes(self) -> int:
        """Decodes granted in this step so far, where the policy's limits go by phase; else 0."""

    @property
    def drafted(self) -> int:
        """Draft tokens granted beside those decodes."""

    @property
    def free_blocks(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def pledged_blocks(self) -> int:
        """Free blocks promised to running requests that were admitted for all they can ever need."""

    @property
    def running(self) -> int:
        """Taken batch slots."""

    @property
    def waiting(self) -> int: ...
    @property
    def arrivals_over(self) -> bool:
        """Whether no further request can arrive."""

    @property
    def prefilling(self) -> bool:
        """Whether a running request has more than its newest token to compute."""

    def running_requests(self) -> Iterable[RequestView]:
        """In order of admission."""

    def head(self) -> RequestView | None:
        """The first waiting request."""
