"""The virtual token counter: fairness between tenants that share an instance (VT-01 to VT-05).

After "Fairness in Serving Large Language Models" (arXiv 2401.00588) and its artefact. Each tenant's counter grows by
the weighted tokens it is served; the tenant with the smallest counter among those that wait comes next.
"""

from collections.abc import Collection

from scheduler_core.sched.view import RequestView


class VirtualTokenCounter:
    """Counters of all tenants, in weighted tokens. They never fall, and rise without service only on a return (VT-02).

    Bound (VT-06): between two tenants that always have requests waiting, the counters differ by at most the largest
    input cost plus ``output_weight`` times the tokens a full batch can emit before the next admission.
    """

    def __init__(self, *, input_weight: int = 1, output_weight: int = 2) -> None:
        self.counters: dict[str, int] = {}
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._left_last: str | None = None

    def arrived(self, request: RequestView, queued: Collection[str]) -> None:
        """Lift a tenant that had nothing waiting, so that idle time earns no credit (VT-02)."""
        tenant = request.spec.tenant
        own = self.counters.setdefault(tenant, 0)
        if tenant in queued:
            return
        if queued:
            self.counters[tenant] = max(own, min(self.counters[other] for other in queued))
        elif self._left_last is not None:
            self.counters[tenant] = max(own, self.counters[self._left_last])

    def admitted(self, request: RequestView, queued: Collection[str]) -> None:
        """Charge the input, once (VT-03)."""
        tenant = request.spec.tenant
        if request.preemptions == 0:
            self.counters[tenant] += self._input_weight * request.spec.prompt_tokens
        if tenant not in queued:
            self._left_last = tenant

    def emitted(self, request: RequestView) -> None:
        """Charge an output token (VT-04)."""
        self.counters[request.spec.tenant] += self._output_weight

    def rank(self, tenant: str) -> tuple[int, ...]:
        """The smallest counter first."""
        return (self.counters[tenant],)
