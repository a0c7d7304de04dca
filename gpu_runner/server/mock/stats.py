"""What the mock counts, and its metrics page in the words of vLLM 0.33.0 or SGLang 0.5.23."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from gpu_runner.server.mock.stream import Answer
from scheduler_core.types.time import NS_PER_MS, NS_PER_S

_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_HISTOGRAMS = ("ttft", "gap", "e2e", "queue", "prefill", "decode", "tpot")


class Histogram:
    """A cumulative histogram of seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.sum += value
        place = next((i for i, bound in enumerate(_BOUNDS) if value <= bound), len(_BOUNDS))
        self.counts[place] += 1

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Its lines of a metrics page."""
        total = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


class Stats:
    """Gauges of now, counters and histograms since the start; the latter appear ``delay_ms`` late."""

    def __init__(self, delay_ms: float = 0.0) -> None:
        self.running = self.waiting = 0
        self.kv_used = self.kv_cached = 0
        self.kv_blocks, self.block_size = 512, 16
        self.preemptions = 0
        self.counters = dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "generation_tokens", "length", "abort", "error"), 0
        )
        self.histograms = {name: Histogram() for name in _HISTOGRAMS}
        self.began_s = time.time()
        self._delay_ns = round(delay_ms * NS_PER_MS)
        self._pending: deque[tuple[int, Callable[[], None]]] = deque()
        self._arrived: dict[int, int] = {}
        self._admitted: dict[int, int] = {}

    def arrived(self, answer: Answer) -> None:
        """A question came in."""
        self._arrived[id(answer)] = time.monotonic_ns()

    def queued(self, answer: Answer) -> None:
        """The answer's wait in the queue is over."""
        self._admitted[id(answer)] = time.monotonic_ns()

    def looked_up(self, tokens: int, hit: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self.counters["prompt_tokens"] += tokens
        self.counters["cached_tokens"] += hit

    def ended(self, answer: Answer, reason: str) -> None:
        """An answer is over; its samples appear after the delay."""
        now = time.monotonic_ns()
        arrived = self._arrived.pop(id(answer), now)
        admitted = self._admitted.pop(id(answer), arrived)
        sent, tokens = list(answer.sent), answer.emitted
        self._pending.append((now + self._delay_ns, lambda: self._publish((arrived, admitted), sent, tokens, reason)))

    def _publish(self, started: tuple[int, int], sent: list[tuple[int, int]], tokens: int, reason: str) -> None:
        self.counters["generation_tokens"] += tokens
        self.counters[reason] = self.counters.get(reason, 0) + 1
        if not sent:
            return
        arrived, admitted = started
        first, last = sent[0][0], sent[-1][0]
        add = {name: histogram.add for name, histogram in self.histograms.items()}
        add["ttft"]((first - arrived) / NS_PER_S)
        add["queue"]((admitted - arrived) / NS_PER_S)
        add["prefill"]((first - admitted) / NS_PER_S)
        add["decode"]((last - first) / NS_PER_S)
        add["e2e"]((last - arrived) / NS_PER_S)
        if tokens > 1:
            add["tpot"]((last - first) / NS_PER_S / (tokens - 1))
        for (before, _), (at, _) in pairwise(sent):
            add["gap"]((at - before) / NS_PER_S)

    def page(self, dialect: str, model: str, hidden: Iterable[str]) -> str:
        """The metrics page now."""
        now = time.monotonic_ns()
        while self._pending and self._pending[0][0] <= now:
            self._pending.popleft()[1]()
        lines = self._vllm(model) if dialect == "vllm" else self._sglang(model)
        left_out = tuple(hidden)
        kept = [line for line in lines if not any(name in line for name in left_out)]
        return "\n".join(kept) + "\n"

    def _vllm(self, model: str) -> Iterator[str]:
        labels = f'engine="0",model_name="{model}"'
        count = self.counters
        used = self.kv_used / self.kv_blocks
        yield from lines_of("vllm:num_requests_running", "gauge", labels, self.running)
        yield from lines_of("vllm:num_requests_waiting", "gauge", labels, self.waiting)
        yield from lines_of("vllm:kv_cache_usage_perc", "gauge", labels, used)
        for name, value in (
            ("prefix_cache_queries", count["prompt_tokens"]),
            ("prefix_cache_hits", count["cached_tokens"]),
            ("num_preemptions", self.preemptions),
            ("prompt_tokens", count["prompt_tokens"]),
            ("generation_tokens", count["generation_tokens"]),
        ):
            yield from lines_of(f"vllm:{name}_total", "counter", labels, value)
            yield from lines_of(f"vllm:{name}_created", "gauge", labels, self.began_s)
        yield "# TYPE vllm:request_success_total counter"
        for reason in ("stop", "length", "abort", "error"):
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count.get(reason, 0))}'
        for name, of in (
            ("time_to_first_token_seconds", "ttft"), ("inter_token_latency_seconds", "gap"),
            ("e2e_request_latency_seconds", "e2e"), ("request_queue_time_seconds", "queue"),
            ("request_prefill_time_seconds", "prefill"), ("request_decode_time_seconds", "decode"),
            ("request_time_per_output_token_seconds", "tpot"),
        ):  # fmt: skip
            yield f"# TYPE vllm:{name} histogram"
            yield from self.histograms[of].lines(f"vllm:{name}", labels)
        yield "# TYPE vllm:iteration_tokens_total histogram"
        yield from Histogram().lines("vllm:iteration_tokens_total", labels)
        info = f'{labels},block_size="{self.block_size}",num_gpu_blocks="{self.kv_blocks}",enable_prefix_caching="True"'
        yield from lines_of("vllm:cache_config_info", "gauge", info, 1)

    def _sglang(self, model: str) -> Iterator[str]:
        labels = f'engine_type="unified",model_name="{model}",tp_rank="0",pp_rank="0"'
        count, size = self.counters, self.block_size
        total = self.kv_blocks * size
        used, evictable = self.kv_used * size, self.kv_cached * size
        for name, value in (
            ("num_running_reqs", self.running), ("num_queue_reqs", self.waiting), ("num_paused_reqs", 0),
            ("num_retracted_reqs", 0), ("num_used_tokens", used), ("token_usage", used / total),
            ("kv_used_tokens", used), ("kv_evictable_tokens", evictable),
            ("kv_available_tokens", total - used - evictable), ("max_total_num_tokens", total),
            ("cache_hit_rate", 0), ("gen_throughput", 0), ("utilization", 0),
        ):  # fmt: skip
            yield from lines_of(f"sglang:{name}", "gauge", labels, value)
        for name, value in (
            ("prompt_tokens", count["prompt_tokens"]), ("generation_tokens", count["generation_tokens"]),
            ("cached_tokens", count["cached_tokens"]), ("num_retracted_requests", self.preemptions),
            ("num_requests", count["length"]), ("num_aborted_requests", count["abort"]),
        ):  # fmt: skip
            yield from lines_of(f"sglang:{name}_total", "counter", labels, value)
        for name, of in (
            ("time_to_first_token_seconds", "ttft"), ("inter_token_latency_seconds", "gap"),
            ("e2e_request_latency_seconds", "e2e"), ("queue_time_seconds", "queue"),
            ("request_time_per_output_token_seconds", "tpot"),
        ):  # fmt: skip
            yield f"# TYPE sglang:{name} histogram"
            yield from self.histograms[of].lines(f"sglang:{name}", labels)


def lines_of(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    """The lines of one value on a metrics page."""
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)}"
