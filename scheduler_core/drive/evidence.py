"""Evidence on its way from a driver to its sink."""

from collections.abc import Callable

from scheduler_core.drive.ports import Sink
from scheduler_core.types.records import Record


class Evidence:
    """A sink in front of another that can hold records back, in order, until the host has nothing better to do.

    Where the device computes beside the host, evidence of a step is made and written while the next one runs instead
    of between the two. Where computing is the host's own work there is no such time, and nothing is held.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[Callable[[], Record]] = []
        self._holds = False

    def write(self, record: Record) -> None:
        """Take one record."""
        self.make(lambda: record)

    def make(self, record: Callable[[], Record]) -> None:
        """Take a record that is made when it is written; what it is made of must not change until then."""
        if self._holds:
            self._held.append(record)
        else:
            self._sink.write(record())

    def flush(self, *, hold: bool = False) -> None:
        """Write what is held; from now on hold records back, or do not."""
        held, self._held = self._held, []
        for record in held:
            self._sink.write(record())
        self._holds = hold
