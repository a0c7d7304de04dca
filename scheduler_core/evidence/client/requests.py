"""Requests as a load client knows them: latencies, how late each was sent, and typed absences for the rest."""

from dataclasses import dataclass

import numpy as np

from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.requests import NOT_APPLICABLE, Column, Requests
from scheduler_core.evidence.schema import Absence
from scheduler_core.evidence.sweep import SEND_DELAY
from scheduler_core.types.time import NS_PER_MS


@dataclass(frozen=True)
class ClientRequests(Requests):
    """The parts of a request's time inside the server are not measured; its lateness and connecting are."""

    def _segments(self) -> dict[str, Column]:
        always = np.ones(len(self), dtype=np.bool_)
        unseen = {**dict.fromkeys(super()._segments(), "ms"), **NOT_APPLICABLE}
        fields = {
            name: Column(np.zeros(len(self)), unit, ((Absence.NOT_MEASURED, always),)) for name, unit in unseen.items()
        }
        unsent = (Absence.FAILED, self.rows["tries"] == 0)
        for name in (f"{SEND_DELAY}_ms", "connect_ms"):
            ns = self.rows[name.removesuffix("_ms") + "_ns"]
            fields[name] = Column(np.asarray(ns / NS_PER_MS, dtype=np.float64), "ms", (unsent,))
        untold = (Absence.NOT_MEASURED, self.rows["queue_told"] == 0)
        fields["queue_wait_ms"] = Column(np.asarray(self.rows["queue_ns"] / NS_PER_MS), "ms", (untold,))
        return fields

    def _sizes(self) -> dict[str, Column]:
        """Tokens found in the cache, where the answer said so."""
        unsaid = (Absence.NOT_MEASURED, self.rows["hit_tokens"] == MISSING)
        sizes = {name: Column(column.values, "tokens", (unsaid,)) for name, column in super()._sizes().items()}
        always = np.ones(len(self), dtype=bool)  # in which tier it lay, no server says
        return {**sizes, "host_hit_tokens": Column(np.zeros(len(self)), "tokens", ((Absence.NOT_MEASURED, always),))}
