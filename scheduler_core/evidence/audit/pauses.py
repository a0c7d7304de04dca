"""The part of the audit that follows requests which stop and go on with what they had computed."""

from collections.abc import MutableMapping
from dataclasses import replace

from scheduler_core.evidence.audit.checks import AuditedInstance, AuditedRequest
from scheduler_core.evidence.audit.moves import Check
from scheduler_core.types.records import Paused, Resumed, Swapped

PAUSES = (Paused, Resumed, Swapped)
KEEP, SWAP = "keep", "swap"
HOST = "host"


class PausesAudit:
    """Replays pauses; ``check`` is that of the audit."""

    def __init__(self, instances: MutableMapping[int, AuditedInstance], check: Check) -> None:
        self._instances = instances
        self._check = check

    def take(self, record: Paused | Resumed | Swapped, request: AuditedRequest | None) -> None:
        """Replay one record of ``request``, which is open unless it is None."""
        if isinstance(record, Paused):
            self._paused(record, request)
        elif isinstance(record, Resumed):
            self._resumed(record, request)
        else:
            self._swapped(record, request)

    def _paused(self, record: Paused, request: AuditedRequest | None) -> None:
        resident = request is not None and request.resident and request.paused is None
        self._check("paused once", resident, f"paused request {record.request}", "was not running")
        if request is not None:
            request.resident, request.paused = False, record
            instance = self._instances[request.instance]
            instance.leave(record.request)
            instance.swapped_blocks += record.blocks * (record.how == SWAP)

    def _resumed(self, record: Resumed, request: AuditedRequest | None) -> None:
        where = f"resumed request {record.request}"
        before = request.paused if request is not None else None
        self._check("paused once", before is not None, where, "was not paused")
        if request is None or before is None:
            return
        newer = record.epoch - before.epoch
        same = (record.tokens, record.how, newer) == (before.tokens, before.how, int(before.how == SWAP))
        self._check("paused once", same, where, "{} tokens by {} in epoch {}, paused with {} by {} in epoch {}",
                    record.tokens, record.how, record.epoch, before.tokens, before.how, before.epoch)  # fmt: skip
        self.unpause(request)
        request.resident, request.epoch, request.next_start = True, record.epoch, record.tokens
        self._instances[request.instance].resident.add(record.request)

    def _swapped(self, record: Swapped, request: AuditedRequest | None) -> None:
        """A paused request goes on from the host, in a new epoch, or from the device, as if it had been paused so."""
        before = request.paused if request is not None else None
        out = record.to == HOST
        told = record.tokens, record.epoch - 1
        moves = before is not None and (before.tokens, before.epoch) == told and before.how == (KEEP if out else SWAP)
        self._check("paused once", moves, f"swapped request {record.request}", "{} tokens to the {} in epoch {}, "
                    "paused as {}", record.tokens, record.to, record.epoch, before)  # fmt: skip
        if request is None or before is None:
            return
        self._instances[request.instance].swapped_blocks += record.blocks if out else -before.blocks
        how, epoch = (SWAP, record.epoch - 1) if out else (KEEP, record.epoch)
        request.paused = replace(before, how=how, epoch=epoch, blocks=record.blocks)

    def unpause(self, request: AuditedRequest) -> None:
        """``request`` goes on, or gives up what it had."""
        if request.paused is not None and request.paused.how == SWAP:
            self._instances[request.instance].swapped_blocks -= request.paused.blocks
        request.paused = None
