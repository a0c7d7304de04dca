"""From prefill to decode: transfer the KV, compute it again, stay, or fail; one state machine per request.

::

    prefilling -> parked -> reserved -> sending -> landed (lodged at the destination)
                     |                     |
                     |                     +-- broken off -> recompute, stay or fail
                     +-- no room in time, too dear, or the policy wants it -> recompute or stay

The source keeps the KV until it has landed, so an abort, a broken transfer or a destination without room loses nothing
(DS-03, PD-07). When the destination is reserved (at arrival, or when the prompt is computed) and how bytes move (after
prefill, chunk by chunk, or layer by layer) are two parameters; with a reservation at arrival chunks are sent as they
come (PD-02), and layers while the step that computes them still runs.
"""

from collections.abc import Collection, Sequence

from scheduler_core.cluster.departures import Departures
from scheduler_core.cluster.disposition import Disposition, Ways
from scheduler_core.cluster.effects import Effects
from scheduler_core.cluster.leases import Leases
from scheduler_core.cluster.links import Moved
from scheduler_core.cluster.rules import Action, Emitter, Fallback, Faults, Move, Reserve, Rules
from scheduler_core.cluster.transfer import Transfer
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.sched.plan import Ended
from scheduler_core.types.cluster_records import Emitted, Handoff, Held, Parked, TransferFailed, Transferred
from scheduler_core.types.errors import LawError
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_TRANSFER, _READY = Action.TRANSFER, Reserve.READY
_BY_PREFILL, _ON_ARRIVAL, _BY_DECODE = Emitter.PREFILL, Emitter.ARRIVAL, Emitter.DECODE


class Handoffs:
    """All requests between prefill and decode. Strictly in order: who was ready first is served first (DS-02).

    ``decided`` counts decisions by action and reason; ``records`` are what happened, as long as it `keeps_records`.
    """

    def __init__(self, ways: Ways, rules: Rules, faults: Faults, leases: Leases | None = None) -> None:
        self._ways = ways
        self._rules = rules
        self._faults = faults
        self._leases = leases
        self._open: dict[int, Transfer] = {}
        self._waiting: dict[int, Transfer] = {}
        self._late: list[Transfer] = []
        self._departures = Departures(rules.kv_layers)
        self._held: dict[int, RequestSpec] = {}
        self._disposition = Disposition(ways, rules)
        self._roomier: set[int] = set()
        self._silent: set[int] = set()
        self.keeps_records = True
        self.records: list[Record] = []
        self.decided: dict[tuple[str, str], int] = {}

    # --- events ------------------------------------------------------------------------------------------------

    def arrived(self, spec: RequestSpec, source: int, now_ns: Ns, *, destination: int | None = None) -> None:
        """A request was routed to ``source``; its destination may be reserved at once, or must be (PD-01).

        It goes to ``destination`` if that was chosen already (SW-01) and still decodes.
        """
        streams = spec.prompt_tokens >= self._rules.stream_tokens
        transfer = Transfer(spec.id, source, tier=spec.tier, planned=destination, streams=streams)
        self._open[spec.id] = transfer
        if self._rules.first_token is _BY_DECODE:
            self._ways.instances[source].withhold(spec.id)
        if self._rules.reserve is _READY:
            return
        if not self._held and self._keep_place(transfer, spec, now_ns):
            return
        if self._rules.reserve is Reserve.BEFORE:
            self._ways.instances[source].hold(spec.id)
            self._held[spec.id] = spec
            self.records.append(Held(now_ns, spec.id, source))

    def _keep_place(self, transfer: Transfer, spec: RequestSpec, now_ns: Ns) -> bool:
        """Room for the KV of a prompt that is not computed yet; true also where it stays: it would never fit, nobody
        else decodes, or nobody better than where it is computed."""
        answers = self._rules.first_token is not _BY_DECODE
        destination = self._disposition.destination(transfer)
        if destination is None or destination == transfer.source:
            return True
        leaving = Leaving(spec, spec.prompt_tokens + answers, spec.prompt_tokens, 1)
        reserved = self._room(leaving, destination, now_ns)
        if isinstance(reserved, Reserved):
            transfer.destination, transfer.reserved, transfer.sent = destination, reserved, reserved.hit_tokens
            self._disposition.promise(transfer, leaving.computed)
        return reserved is not None

    def computed(self, spec: RequestSpec, tokens: int, now_ns: Ns) -> bool:
        """A chunk of the prompt is done, up to ``tokens`` positions; it may be sent while the next is computed.

        True when that was the last one of a prompt whose first token is computed elsewhere.
        """
        transfer = self._open.get(spec.id)
        if transfer is None:
            return False
        if transfer.reserved is not None and transfer.streams and self._rules.move is Move.CHUNKS:
            self._send(transfer, tokens, now_ns)
        return self._rules.first_token is _BY_DECODE and tokens == spec.prompt_tokens

    @property
    def by_layer(self) -> bool:
        """Whether `launched` is to be told."""
        return self._rules.move is Move.LAYERS

    def launched(self, request: int, tokens: int, start_ns: Ns, end_ns: Ns) -> None:
        """A step computes positions up to ``tokens`` over ``[start_ns, end_ns)``: a layer is sent when it is done."""
        transfer = self._open.get(request)
        if transfer is None or transfer.reserved is None or transfer.ready_ns is not None or not transfer.streams:
            return
        size = (tokens - transfer.sent) * self._rules.kv_bytes_per_token
        if size > 0:
            transfer.sent = tokens
            transfer.under_way += self._departures.plan(transfer, size, start_ns, end_ns)

    def awaits(self, request: int) -> bool:
        """Whether a request is to be handed over once its prompt is computed."""
        transfer = self._open.get(request)
        return transfer is not None and transfer.ready_ns is None

    def ready(self, request: int, now_ns: Ns) -> bool:
        """The prompt is computed; `settle` decides what comes next. Returns whether its first token may be told now."""
        transfer = self._open[request]
        source = self._ways.instances[transfer.source]
        source.park(request)
        transfer.ready_ns, transfer.left = now_ns, source.leaving(request)
        if transfer.reserved is not None:
            self._disposition.promise(transfer, transfer.left.computed)
        transfer.withheld = self._rules.first_token is _ON_ARRIVAL
        if self.keeps_records:
            answered = self._rules.first_token is _BY_PREFILL
            self.records.append(Parked(now_ns, request, transfer.source, answered))
        self._waiting[request] = transfer
        return not transfer.withheld

    def idle(self, now_ns: Ns) -> bool:
        """Whether `settle` has nothing to do if nothing has landed."""
        waits = self._waiting or self._held or self._roomier or self._late or self._leases is not None
        return not waits and now_ns < self._departures.next_ns()

    def settle(self, now_ns: Ns, landed: Sequence[Moved], effects: Effects) -> None:
        """Finish what has ``landed`` and decide about who waits, in order, up to the first that must go on waiting.

        Behind that one only those go on that have a place already: they take nothing away from it.
        """
        if self._roomier:
            effects.touched.update(self._roomier)
            self._roomier = set()
        if self._leases is not None:
            effects.touched.update(self._leases.settle(landed, now_ns))
            self.records += self._leases.records
            self._leases.records = []
        if self._departures.next_ns() <= now_ns:
            for transfer, size in self._departures.due(now_ns):
                self._start_link(transfer, size, now_ns)
        for moved in landed:
            if isinstance(moved.flow, Transfer):
                self._piece_landed(moved.flow, moved, now_ns, effects)
        if self._late:
            for transfer in [item for item in self._late if (item.reported_ns or 0) <= now_ns]:
                self._late.remove(transfer)
                self._finish(transfer, now_ns, effects)
        if self._waiting:
            self._dispose_all(now_ns, effects)
        if self._held:
            self._let_go(now_ns, effects)
        if not self.keeps_records:
            self.records.clear()

    def _dispose_all(self, now_ns: Ns, effects: Effects) -> None:
        """Decide about who waits; whoever is behind a blocked one without a place is not looked at one by one."""
        placed_early = self._rules.reserve is not _READY
        if not placed_early and not self._silent:
            for _ in range(len(self._waiting)):  # whoever is the first by then
                if not self._dispose(next(iter(self._waiting.values())), now_ns, effects):
                    return
            return
        blocked = False
        for transfer in tuple(self._waiting.values()):
            if transfer.source in self._silent or (blocked and transfer.reserved is None):
                continue
            blocked |= not self._dispose(transfer, now_ns, effects)
            if blocked and not placed_early:
                return

    def _let_go(self, now_ns: Ns, effects: Effects) -> None:
        """Let go who was held for want of room to decode, in order."""
        for spec in list(self._held.values()):
            transfer = self._open[spec.id]
            if not self._keep_place(transfer, spec, now_ns):
                break
            del self._held[spec.id]
            self._ways.instances[transfer.source].release(spec.id)
            self.records.append(Held(now_ns, spec.id, transfer.source, over=True))
            effects.touched.add(transfer.source)

    def forget(self, request: int, now_ns: Ns) -> None:
        """A request is over, wherever it is on its way: its reservation and what is on the link are given up."""
        transfer = self._open.pop(request, None)
        if transfer is None:
            return
        self._waiting.pop(request, None)
        self._held.pop(request, None)
        dropped = self._give_up(transfer, now_ns)
        if dropped is not None:
            self._roomier.add(dropped)

    def next_ns(self) -> Ns:
        """When `settle` has something to do by time alone; `NEVER` when it has not."""
        at_ns, patience = self._departures.next_ns(), self._rules.patience_ns
        if self._leases is not None:
            at_ns = min(at_ns, self._leases.next_ns())
        for transfer in self._late:
            if transfer.reported_ns is not None and transfer.reported_ns < at_ns:
                at_ns = transfer.reported_ns
        if patience is not None and self._waiting:
            heard = [transfer for transfer in self._waiting.values() if transfer.source not in self._silent]
            if heard and heard[0].ready_ns is not None:
                at_ns = min(at_ns, heard[0].ready_ns + patience)
        return at_ns

    def reserved_at(self, member: int) -> set[int]:
        """Requests that have a place, but are not yet, at ``member``."""
        return {t.request for t in self._open.values() if t.reserved is not None and t.destination == member}

    # --- one request -------------------------------------------------------------------------------------------

    def _dispose(self, transfer: Transfer, now_ns: Ns, effects: Effects) -> bool:
        """Do something about a waiting request; false if it must go on waiting."""
        assert transfer.left is not None
        if transfer.reserved is None:
            chosen = self._disposition.destination(transfer)
            transfer.destination = transfer.source if chosen is None else chosen
        transfer_ns, recompute_ns = self._disposition.predict(transfer, now_ns)
        action, reason = self._disposition.wanted(transfer_ns, recompute_ns)
        if transfer.destination == transfer.source:  # nobody is left to decode
            action, reason = Action.STAY, Fallback.NO_ROOM
        if action is _TRANSFER and transfer.reserved is None:
            reserved = self._place(transfer.left, transfer.destination, now_ns)
            if reserved is None:
                if not self._disposition.out_of_patience(transfer, now_ns):
                    return False
                action, reason = Action.STAY, Fallback.NO_ROOM
            elif isinstance(reserved, Ended):
                action, reason = Action.STAY, Fallback.NEVER_FITS
            else:
                transfer.reserved, transfer.sent = reserved, reserved.hit_tokens
                self._disposition.promise(transfer, transfer.left.computed)
        del self._waiting[transfer.request]
        self._decided(transfer, action, reason, (transfer_ns, recompute_ns), now_ns)
        if action is _TRANSFER:
            self._send(transfer, transfer.left.computed, now_ns)
            if self._unheard(transfer):
                transfer.under_way += 1  # it will never be reported; `lost` puts an end to it
            elif not transfer.under_way:  # everything has landed while it was computed, or is cached there
                self._finish(transfer, now_ns, effects)
        else:
            self._without_transfer(transfer, action, now_ns, effects)
        return True

    def _place(self, left: Leaving, destination: int, now_ns: Ns) -> Reserved | Ended | None:
        """Room at the destination.

        Where everybody there only has a place and is not ready itself, the youngest of them loses it: they would wait
        for blocks of the source, and this one, which holds some there, for theirs.
        """
        instance = self._ways.instances[destination]
        while (found := self._room(left, destination, now_ns)) is None:
            coming = [t for t in self._open.values() if t.reserved is not None and t.destination == destination]
            unready = [t for t in coming if t.ready_ns is None]
            if not unready or instance.serves_anybody():
                return None
            self._give_up(unready[-1], now_ns)
        return found

    def _room(self, left: Leaving, destination: int, now_ns: Ns) -> Reserved | Ended | None:
        """What the destination says, if the rules let anybody in."""
        instance, rules = self._ways.instances[destination], self._rules
        if rules.accept_share < 1 and instance.landed_blocks() >= rules.accept_share * instance.policy.limits.kv_blocks:
            return None
        if rules.retracted_first and instance.owes():
            return None
        headroom = rules.headroom_tokens * len(instance.open_requests()) if rules.headroom_tokens else 0
        return instance.reserve(left, now_ns, headroom_tokens=headroom)

    def _without_transfer(self, transfer: Transfer, action: Action, now_ns: Ns, effects: Effects) -> None:
        """Stay at the source, compute again at the destination, or end."""
        request, left = transfer.request, transfer.left
        assert left is not None
        dropped = self._give_up(transfer, now_ns)
        if dropped is not None:
            effects.touched.add(dropped)
        del self._open[request]
        source = self._ways.instances[transfer.source]
        effects.touched.add(transfer.source)
        if action is not Action.FAIL:
            self._tell(transfer, now_ns)
        if action is Action.RECOMPUTE and self._ways.instances[transfer.destination].resume(left, now_ns) is None:
            source.depart(request)
            effects.moved.append((request, transfer.destination))
            effects.touched.add(transfer.destination)
        elif action is Action.FAIL:
            ended = source.abort(request, outcome=Outcome.FAILED, reason=f"handoff: {Fallback.BROKEN_OFF.value}")
            if ended is not None:
                told = ended._replace(output_tokens=ended.output_tokens - transfer.withheld)
                effects.ended.append((transfer.source, told))
        else:
            source.stay(request)
            self.records.append(transfer.landing(transfer.source, left.epoch - 1, now_ns))

    def _tell(self, transfer: Transfer, now_ns: Ns) -> None:
        """Hand a withheld first token to the caller."""
        if transfer.withheld:
            transfer.withheld = False
            self.records.append(Emitted(now_ns, transfer.request, transfer.source))

    def _send(self, transfer: Transfer, tokens: int, now_ns: Ns) -> None:
        """Give positions up to ``tokens`` that were not sent yet to the link."""
        size = (tokens - transfer.sent) * self._rules.kv_bytes_per_token
        if size <= 0:
            return
        transfer.sent = tokens
        transfer.under_way += 1
        self._start_link(transfer, size, now_ns)

    def _piece_landed(self, transfer: Transfer, moved: Moved, now_ns: Ns, effects: Effects) -> None:
        transfer.under_way -= 1
        if self._open.get(transfer.request) is not transfer:
            return  # given up meanwhile
        ways = transfer.request, transfer.source, transfer.destination
        if self.keeps_records:
            self.records.append(Transferred(now_ns, moved.start_ns, *ways, moved.size, moved.alone_ns))
        if transfer.ready_ns is None or transfer.under_way or transfer.request in self._waiting:
            return  # more is to come
        delay = self._faults.delay_ns(transfer.request, transfer.attempt)
        if delay:
            transfer.reported_ns = now_ns + delay
            self._late.append(transfer)
        else:
            self._finish(transfer, now_ns, effects)

    def _finish(self, transfer: Transfer, now_ns: Ns, effects: Effects) -> None:
        """All bytes have moved: the request is at its destination, or the transfer turns out to be broken."""
        left, reserved = transfer.left, transfer.reserved
        assert left is not None and reserved is not None
        if self._faults.broken(transfer.request, transfer.attempt):
            self._broken(transfer, now_ns, effects)
            return
        del self._open[transfer.request]
        self._disposition.promise(transfer, 0)
        self._ways.instances[transfer.destination].land(transfer.request, left.computed)
        self._ways.instances[transfer.source].depart(transfer.request)
        self._tell(transfer, now_ns)
        if self.keeps_records:
            self.records.append(transfer.landing(transfer.destination, reserved.epoch, now_ns))
        effects.moved.append((transfer.request, transfer.destination))
        effects.touched.update((transfer.source, transfer.destination))

    def _broken(self, transfer: Transfer, now_ns: Ns, effects: Effects) -> None:
        self.records.append(
            TransferFailed(now_ns, transfer.request, transfer.source, transfer.destination, Fallback.BROKEN_OFF.value)
        )
        transfer.attempt += 1
        action = self._rules.broken
        if action is Action.TRANSFER:  # once more, from the start
            dropped = self._give_up(transfer, now_ns)
            if dropped is not None:
                effects.touched.add(dropped)
            self._waiting[transfer.request] = transfer
            return
        self._decided(transfer, action, Fallback.BROKEN_OFF, self._disposition.predict(transfer, now_ns), now_ns)
        self._without_transfer(transfer, action, now_ns, effects)

    def _give_up(self, transfer: Transfer, now_ns: Ns) -> int | None:
        """Drop a reservation and what is on the link for it; the instance that has room again."""
        if transfer.reserved is None:
            return None
        self._departures.stop(transfer)
        if self._leases is not None:
            delay_ns = self._faults.delay_ns(transfer.request, transfer.attempt)
            self._leases.hold(transfer, delay_ns, now_ns, unheard=self._unheard(transfer))
        if transfer in self._late:
            self._late.remove(transfer)
        self._stop_link(transfer, now_ns)
        self._ways.instances[transfer.destination].depart(transfer.request)
        self._disposition.promise(transfer, 0)
        transfer.reserved, transfer.sent, transfer.under_way, transfer.reported_ns = None, 0, 0, None
        return transfer.destination

    # --- deaths ------------------------------------------------------------------------------------------------

    def silence(self, member: int, now_ns: Ns) -> None:
        """``member`` died: nothing it sends or was sent will be reported any more, which nobody knows yet."""
        self._silent.add(member)
        for transfer in self._open.values():
            if member in (transfer.source, transfer.destination) and transfer.reserved is not None:
                self._stop_link(transfer, now_ns)
        self._late = [transfer for transfer in self._late if not self._unheard(transfer)]
        if self._leases is not None:
            self._leases.silence(member, now_ns)

    def lost(self, member: int, now_ns: Ns) -> None:
        """It is known that ``member`` died: what was on its way there needs another place. Sources have the KV."""
        for transfer in self._open.values():
            if transfer.destination != member or transfer.source == member or transfer.reserved is None:
                continue
            transfer.under_way, transfer.reported_ns = 0, None  # nobody is there to write to
            self._give_up(transfer, now_ns)
            if transfer.ready_ns is not None and transfer.request not in self._waiting:
                transfer.attempt += 1
                self.records.append(
                    TransferFailed(now_ns, transfer.request, transfer.source, member, Fallback.INSTANCE_DIED.value)
                )
                self._waiting[transfer.request] = transfer

    def back(self, member: int) -> None:
        """``member`` can be heard again."""
        self._silent.discard(member)

    def choose(self, tier: str) -> int | None:
        """The instance that a request of ``tier`` is best decoded at; None when there is none."""
        return self._disposition.choose(tier)

    def let_in(self, decoders: Sequence[int]) -> None:
        """Only ``decoders`` take requests in from now on."""
        self._disposition.decoders = decoders

    def open(self, request: int) -> bool:
        """Whether a request is still to be handed over."""
        return request in self._open

    def homeless(self, members: Collection[int]) -> tuple[int, int]:
        """How many requests are to be decoded by ``members``, but have no place there, and their KV tokens."""
        isolation = self._ways.isolation
        waiting = [t for t in self._waiting.values() if isolation is None or isolation.own(t.tier) == members]
        lefts = [t.left for t in waiting if t.reserved is None and t.left is not None]
        return len(lefts), sum(left.computed for left in lefts)

    @property
    def wants_room(self) -> bool:
        """Whether somebody waits for room to decode."""
        return bool(self._waiting or self._held)

    def withholds(self, request: int) -> bool:
        """Whether a request has a first token that was computed, but not emitted."""
        transfer = self._open.get(request)
        return transfer is not None and transfer.withheld

    def _unheard(self, transfer: Transfer) -> bool:
        return transfer.source in self._silent or transfer.destination in self._silent

    def _start_link(self, transfer: Transfer, size: int, now_ns: Ns) -> None:
        if not self._unheard(transfer):
            self._ways.links.between(transfer.source, transfer.destination).start(transfer, size, now_ns)

    def _stop_link(self, transfer: Transfer, now_ns: Ns) -> None:
        self._departures.stop(transfer)
        self._ways.links.between(transfer.source, transfer.destination).stop(transfer, now_ns)

    def _decided(self, transfer: Transfer, action: Action, reason: str, predicted: tuple[Ns, Ns], now_ns: Ns) -> None:
        why = action, reason
        self.decided[why] = self.decided.get(why, 0) + 1
        if self.keeps_records:
            ways = transfer.request, transfer.source, transfer.destination
            self.records.append(Handoff(now_ns, *ways, action.value, str(reason), *predicted))

    def check(self) -> None:
        """`LawError` when a request waits that is not open, or tokens that have a place are counted wrong."""
        for request in self._waiting:
            if request not in self._open:
                raise LawError(f"request {request} waits for a handoff but is not on its way")
        promised = [0] * len(self._disposition.promised)
        for transfer in self._open.values():
            if transfer.reserved is not None:
                spec = self._ways.instances[transfer.source].leaving(transfer.request)
                left = transfer.left
                promised[transfer.destination] += spec.spec.prompt_tokens if left is None else left.computed
        if promised != self._disposition.promised:
            raise LawError(f"counts {self._disposition.promised} KV tokens with a place, there are {promised}")
