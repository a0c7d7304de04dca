"""What one socket follows: one slot a topic, however many ticks arrive."""

from dataclasses import dataclass
from typing import Any

from controlplane.access import Person
from controlplane.live import snapshots
from controlplane.live.groups import experiment_group, run_group


@dataclass
class RunSubscription:
    """A followed run and how far the client is: attempt and last sequence number sent."""

    run: str
    attempt: int | None
    after: int
    dirty: bool = True
    ended: bool = False
    told: dict[str, Any] | None = None

    @property
    def group(self) -> str:
        """Group of the channel layer that ticks for it."""
        return run_group(self.run)

    def read(self, user: Person) -> dict[str, Any] | None:
        """The next message, from the database; None when the run is gone or may no longer be seen."""
        return snapshots.run_message(user, self.run, attempt=self.attempt, after=self.after)

    def is_news(self, message: dict[str, Any]) -> bool:
        """Whether the message says anything that the client has not been told."""
        return bool(message["samples"]) or message["status"] != self.told

    def sent(self, message: dict[str, Any]) -> None:
        """Move on past what was sent; more is due while the client catches up."""
        self.attempt, self.after = message["attempt"], message["last"]
        # An attempt without samples yet must stay a snapshot, so that its first samples replace older ones.
        self.dirty = self.dirty or message["catching_up"]
        self.told = message["status"]
        self.ended = message["status"]["ended"]

    def missing(self) -> dict[str, Any]:
        """What the client is told instead when there is nothing to read."""
        return {"type": "error", "code": "unknown", "run": self.run, "message": "there is no such run"}


@dataclass
class ExperimentSubscription:
    """A followed experiment; its message is always whole."""

    experiment: str
    dirty: bool = True
    ended: bool = False
    told: dict[str, Any] | None = None

    @property
    def group(self) -> str:
        """Group of the channel layer that ticks for it."""
        return experiment_group(self.experiment)

    def read(self, user: Person) -> dict[str, Any] | None:
        """The next message, from the database; None when the experiment is gone or may no longer be seen."""
        return snapshots.experiment_message(user, self.experiment)

    def is_news(self, message: dict[str, Any]) -> bool:
        """Whether the message says anything that the client has not been told."""
        return message != self.told

    def sent(self, message: dict[str, Any]) -> None:
        """Note what was told and whether anything can still change."""
        self.told = message
        self.ended = message["ended"]

    def missing(self) -> dict[str, Any]:
        """What the client is told instead when there is nothing to read."""
        text = "there is no such experiment"
        return {"type": "error", "code": "unknown", "experiment": self.experiment, "message": text}


Subscription = RunSubscription | ExperimentSubscription
