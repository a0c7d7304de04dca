"""Which instance probably holds which prompt beginning: a router's own approximate index."""

from collections import OrderedDict

from scheduler_core.request.spec import RequestSpec


class PrefixIndex:
    """Leading prompt blocks by the instances they were last sent to.

    Approximate as in life: it is told of what was routed, never of what an instance evicted, and forgets the least
    recently sent blocks of an instance beyond ``capacity``. Look-ups and updates are O(blocks of the prompt).
    """

    def __init__(self, instances: int, capacity: int) -> None:
        self._capacity = capacity
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(instances)]
        self._holders: dict[int, set[int]] = {}

    def matches(self, request: RequestSpec) -> dict[int, int]:
        """Tokens of the prompt's beginning by instance; instances that have none of it are absent."""
        found: dict[int, int] = {}
        size = request.prefix_block_size
        candidates: set[int] | None = None
        for number, block in enumerate(request.prefix_blocks, start=1):
            holders = self._holders.get(block, set())
            candidates = holders if candidates is None else candidates & holders
            if not candidates:
                break
            found.update(dict.fromkeys(candidates, min(number * size, request.prompt_tokens)))
        return found

    def sent(self, request: RequestSpec, instance: int) -> None:
        """``request`` went to ``instance``, which will hold its prompt's blocks."""
        held = self._held[instance]
        for block in request.prefix_blocks:
            if block in held:
                held.move_to_end(block)
                continue
            held[block] = None
            self._holders.setdefault(block, set()).add(instance)
        while len(held) > self._capacity:
            self._forget(held.popitem(last=False)[0], instance)

    def _forget(self, block: int, instance: int) -> None:
        holders = self._holders[block]
        holders.discard(instance)
        if not holders:
            del self._holders[block]
