"""When a run may not be concluded from: its client was late, saturated, or did not send what was asked."""

from dataclasses import dataclass, field

from gpu_runner.server.client.events import Effort
from scheduler_core.types.quantile import quantile
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns

MOST_BUSY_SHARE = 0.9
MOST_RATE_ERROR = 0.01
FEWEST_FOR_RATE = 50


@dataclass
class Lateness:
    """Intended and real send times of first tries."""

    due_ns: dict[int, Ns] = field(default_factory=dict)
    delays_ns: list[Ns] = field(default_factory=list)
    _sent: list[tuple[Ns, Ns]] = field(default_factory=list)

    def due(self, request: int, at_ns: Ns) -> None:
        """A request's intended send time."""
        self.due_ns[request] = at_ns

    def wrote(self, request: int, at_ns: Ns, number: int) -> None:
        """A try was sent; only the first one of a request tells of lateness."""
        if number == 1:
            due = self.due_ns[request]
            self.delays_ns.append(max(0, at_ns - due))
            self._sent.append((due, at_ns))

    @property
    def p99_ms(self) -> float:
        """99th percentile of send delay."""
        return quantile(sorted(self.delays_ns), 0.99) / NS_PER_MS if self.delays_ns else 0.0

    def spans_ns(self) -> tuple[Ns, Ns] | None:
        """From the first to the last send, as asked and as it was; None for too few to tell a rate by."""
        if len(self._sent) < FEWEST_FOR_RATE:
            return None
        due, sent = [row[0] for row in self._sent], [row[1] for row in self._sent]
        spans = (max(due) - min(due), max(sent) - min(sent))
        return spans if min(spans) > 0 else None

    def rates(self) -> tuple[float, float] | None:
        """(asked, achieved) requests per second from the first to the last; None for too few to tell."""
        spans = self.spans_ns()
        if spans is None:
            return None
        count = (len(self._sent) - 1) * NS_PER_S
        return count / spans[0], count / spans[1]


def judge(lateness: Lateness, efforts: list[Effort], *, late_ms: float) -> str:
    """Why the run is void, in one sentence; empty when the client kept up."""
    if lateness.p99_ms > late_ms:
        return (
            f"the load client was late: 99 % of requests were sent within {lateness.p99_ms:.1f} ms of their time, "
            f"allowed are {late_ms:g} ms; {_remedy(efforts)}"
        )
    busiest = max((effort.busiest_share for effort in efforts), default=0.0)
    if busiest > MOST_BUSY_SHARE:
        return f"the load client was saturated: a process of it used {busiest * 100:.0f} % of a core"
    return _wrong_rate(lateness, late_ms=late_ms)


def _remedy(efforts: list[Effort]) -> str:
    """What makes a client less late."""
    if all(effort.real_time for effort in efforts):
        return "use more processes or a quieter machine"
    return (
        "let the client run in real time (RLIMIT_RTPRIO of 1, or CAP_SYS_NICE), or use more processes or a quieter "
        "machine"
    )


def _wrong_rate(lateness: Lateness, *, late_ms: float) -> str:
    """Why the achieved rate is not the asked one; a span that is off by no more than one allowed delay says nothing."""
    spans, rates = lateness.spans_ns(), lateness.rates()
    if spans is None or rates is None or abs(spans[1] - spans[0]) <= late_ms * NS_PER_MS:
        return ""
    off = rates[1] / rates[0] - 1
    if abs(off) <= MOST_RATE_ERROR:
        return ""
    return (
        f"asked were {rates[0]:.1f} requests/s, sent were {rates[1]:.1f}: {abs(off) * 100:.1f} % "
        f"{'fewer' if off < 0 else 'more'}, allowed is {MOST_RATE_ERROR * 100:g} %"
    )
