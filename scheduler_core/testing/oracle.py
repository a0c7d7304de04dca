"""A deliberately slow second reading of the `vllm_v1` rules, to be compared with the planner step by step.

It shares no code with the planner: lists, counts of blocks, one function per rule, no prefix cache, one step at a time.
"""

from dataclasses import dataclass


@dataclass
class OracleRequest:
    """One request: what it knows, what of it is computed, when it came."""

    id: int
    prompt: int
    limit: int
    priority: int
    arrival: int
    known: int = 0
    computed: int = 0
    blocks: int = 0
    preempted: bool = False


@dataclass(frozen=True, kw_only=True)
class OracleRules:
    """The settings that the rules speak of."""

    blocks: int
    block_size: int
    size: int
    budget: int
    chunked: bool = True
    cap: int = 0
    watermark: int = 0
    by_priority: bool = False


class Oracle:
    """Plans as the rules say: running first (V-01), preemption (V-14 to V-16), then waiting (V-03 to V-12)."""

    def __init__(self, rules: OracleRules) -> None:
        self.rules = rules
        self.running: list[OracleRequest] = []
        self.waiting: list[OracleRequest] = []
        self.victims: list[int] = []

    def submit(self, request: OracleRequest) -> None:
        """Queue a request (V-02)."""
        request.known = request.prompt
        self.waiting.append(request)
        self._sort()

    def abort(self, request: int) -> None:
        """Remove a request from wherever it is (V-29)."""
        self.running = [item for item in self.running if item.id != request]
        self.waiting = [item for item in self.waiting if item.id != request]

    def plan(self) -> dict[int, int]:
        """Tokens granted by request in this step, in order."""
        left, grants = self.rules.budget, dict[int, int]()
        self.victims = []
        for request in list(self.running):
            if request not in self.running:
                continue  # preempted meanwhile
            length = min(request.known - request.computed, self._cap(), left)
            if length <= 0:
                continue  # V-06
            while request in self.running and self._need(request, length) > self._free():
                victim = self._victim()
                left += grants.pop(victim.id, 0)  # V-15
                self._preempt(victim)
            if request in self.running:
                left -= length
                grants[request.id] = length
                self._compute(request, length)
        if not self.victims:  # V-17
            self._admit(left, grants)
        return grants

    def complete(self, grants: dict[int, int], last: set[int]) -> None:
        """Everybody who has caught up emits a token; those at their limit or in ``last`` leave (V-28)."""
        for request in list(self.running):
            if request.id in grants and request.computed == request.known:
                request.known += 1
                if request.id in last or request.known - request.prompt == request.limit:
                    self.running.remove(request)

    def _admit(self, left: int, grants: dict[int, int]) -> None:
        while self.waiting and left > 0 and len(self.running) < self.rules.size:
            head = self.waiting[0]
            length = min(head.known, self._cap(), left) if self.rules.chunked else min(head.known, left)
            if not self.rules.chunked and length < head.known:
                outgrown = head.preempted and head.known > self.rules.budget
                if not (outgrown and left == self.rules.budget):
                    return  # V-08
            reserve = self.rules.watermark if self.running else 0  # V-12
            if -(-head.known // self.rules.block_size) + reserve > self._free():
                return  # V-11
            self.waiting.pop(0)
            self.running.append(head)
            left -= length
            grants[head.id] = length
            self._compute(head, length)

    def _compute(self, request: OracleRequest, length: int) -> None:
        request.blocks += self._need(request, length)
        request.computed += length

    def _need(self, request: OracleRequest, length: int) -> int:
        return -(-(request.computed + length) // self.rules.block_size) - request.blocks

    def _free(self) -> int:
        return self.rules.blocks - sum(request.blocks for request in self.running)

    def _cap(self) -> int:
        alone = len(self.running) + len(self.waiting) <= 1  # V-09
        return 1 << 40 if alone or not self.rules.cap or not self.rules.chunked else self.rules.cap

    def _victim(self) -> OracleRequest:
        if self.rules.by_priority:
            return max(self.running, key=lambda item: (item.priority, item.arrival, item.id))
        return self.running[-1]

    def _preempt(self, victim: OracleRequest) -> None:
        self.running.remove(victim)
        victim.computed = victim.blocks = 0
        victim.preempted = True
        self.victims.append(victim.id)
        self.waiting.insert(0, victim)  # V-16
        self._sort()

    def _sort(self) -> None:
        if self.rules.by_priority:
            self.waiting.sort(key=lambda item: (item.priority, item.arrival, item.id))
