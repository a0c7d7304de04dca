"""What a run needs of a target, whether its steps are planned here or a server is watched from outside."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from scheduler_core.drive.ports import Sink
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.job import Sample
from scheduler_core.spec.workload import Tier
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


class Sampler(Protocol):
    """A sink that makes live samples of records."""

    def write(self, record: Record) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Emit the last sample."""


class Finalise(Protocol):
    """Makes tables, audit and summary of a run's records."""

    def __call__(
        self,
        records: Iterable[Record],
        *,
        folder: Path,
        arm: str,
        repeat: int,
        tiers: Mapping[str, Tier],
        warmup_share: float = 0.0,
    ) -> RunSummary:
        """Write the files into ``folder`` and return the summary."""


class Playing(Protocol):
    """A target at its starting line, with the plan it is to play."""

    finalise: Finalise

    def sampler(self, interval_ns: Ns, on_sample: Callable[[Sample], None]) -> Sampler:
        """What makes live samples of this target's records."""

    def play(
        self, sink: Sink, stop: Callable[[], bool], on_progress: Callable[[int, int], None], serving: Callable[[], None]
    ) -> None:
        """Play the plan to its end, or until ``stop``; every record goes to ``sink``. ``serving``: it begins now."""

    def beside_model(self, summary: RunSummary, records: Callable[[], Iterable[Record]]) -> RunSummary:
        """``summary`` with what can be said of the model's word; ``records`` reads those of the run."""

    def close(self) -> None:
        """End what was started for the run."""
