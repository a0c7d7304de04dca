"""Requests as a load client knows them: latencies, how late each was sent, and typed absences for the rest."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.fold.sweep import SEND_DELAY
from scheduler_core.evidence.schema import Absence
from scheduler_core.evidence.tables.requests import NOT_APPLICABLE, Column, Maker, Requests
from scheduler_core.evidence.tables.tables import Mask
from scheduler_core.types.time import NS_PER_MS


@dataclass(frozen=True)
class ClientRequests(Requests):
    """The parts of a request's time inside the server are not measured; its lateness and connecting are."""

    def _segments(self) -> dict[str, Maker]:
        unseen = {**dict.fromkeys(super()._segments(), "ms"), **NOT_APPLICABLE}
        makers: dict[str, Maker] = {
            name: partial(self._never, unit, Absence.NOT_MEASURED) for name, unit in unseen.items()
        }
        for name in (SEND_DELAY, "connect"):
            makers[f"{name}_ms"] = partial(self._told, f"{name}_ns", Absence.FAILED, "tries")
        makers["queue_wait_ms"] = partial(self._told, "queue_ns", Absence.NOT_MEASURED, "queue_told")
        return makers

    def _sizes(self) -> dict[str, Maker]:
        """In which tier of the cache something lay, no server says."""
        return {**super()._sizes(), "host_hit_tokens": partial(self._never, "tokens", Absence.NOT_MEASURED)}

    def _told(self, column: str, absence: Absence, unless: str) -> Column:
        """A time that is absent where column ``unless`` is 0."""
        values = np.asarray(self.rows[column] / NS_PER_MS, dtype=np.float64)
        return Column(values, "ms", ((absence, self.rows[unless] == 0),))

    @property
    def _never_looked_up(self) -> tuple[Absence, Mask]:
        """Tokens found in the cache are known where the answer said so."""
        return Absence.NOT_MEASURED, self.rows["hit_tokens"] == MISSING
