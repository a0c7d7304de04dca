"""Separated pools of the mock: a prompt is computed in one, its state copied, its tokens given by the other."""

import asyncio
from collections.abc import Iterator

from gpu_runner.server.mock.behaviour import Scripted, Separated
from gpu_runner.server.mock.engines import ScriptedEngine
from gpu_runner.server.mock.stats import Histogram, Stats, lines_of
from gpu_runner.server.mock.stream import Answer

_MIB = 2.0**20


class SeparatedEngine:
    """Gives answers their tokens from a decode pool, after prefill and a copy; `page` is what each pool exports."""

    def __init__(self, script: Scripted, spec: Separated, decode: Stats) -> None:
        self._spec = spec
        self._prefill_ms = script.ttft_ms
        self._prefill, self._decode_stats = Stats(), decode
        self._decode = ScriptedEngine(script.model_copy(update={"ttft_ms": 0.0}), decode)
        self._where: dict[int, str] = {}
        self._copying = 0
        self._latency_ms, self._megabytes = Histogram(), Histogram()
        self._forward = Histogram()

    def submit(self, answer: Answer) -> None:
        """Compute the prompt."""
        self._prefill.running += 1
        self._where[id(answer)] = "prefill"
        asyncio.get_running_loop().call_later(self._prefill_ms / 1e3, self._copy, answer)

    def leave(self, answer: Answer) -> None:
        """The answer is over, wherever it was."""
        where = self._where.pop(id(answer), "")
        if where == "prefill":
            self._prefill.running -= 1
        elif where == "copy":
            self._copying -= 1
        elif where == "decode":
            self._decode.leave(answer)

    def reset_cache(self) -> None:
        """There is no cache of prefixes here."""

    def page(self, pool: str, model: str) -> str:
        """The metrics page of ``prefill`` or ``decode`` now."""
        stats = self._prefill if pool == "prefill" else self._decode_stats
        page = stats.page("sglang", model, ()).replace('engine_type="unified"', f'engine_type="{pool}"')
        return page + "".join(f"{line}\n" for line in self._own(pool, f'engine_type="{pool}",model_name="{model}"'))

    def _own(self, pool: str, labels: str) -> Iterator[str]:
        if pool == "decode":
            yield from lines_of("sglang:num_decode_prealloc_queue_reqs", "gauge", labels, 0)
            yield from lines_of("sglang:num_decode_transfer_queue_reqs", "gauge", labels, self._copying)
            return
        for name in ("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"):
            yield from lines_of(f"sglang:{name}", "gauge", labels, 0)
        yield from lines_of("sglang:num_prefill_inflight_queue_reqs", "gauge", labels, self._copying)
        yield from lines_of("sglang:num_transfer_failed_reqs_total", "counter", labels, 0)
        yield from lines_of("sglang:num_bootstrap_failed_reqs_total", "counter", labels, 0)
        for name, histogram in (("latency_ms", self._latency_ms), ("total_mb", self._megabytes)):
            yield f"# TYPE sglang:kv_transfer_{name} histogram"
            yield from histogram.lines(f"sglang:kv_transfer_{name}", labels)
        yield "# TYPE sglang:per_stage_req_latency_seconds histogram"
        yield from self._forward.lines("sglang:per_stage_req_latency_seconds", f'{labels},stage="prefill_forward"')

    def _copy(self, answer: Answer) -> None:
        if answer.over:
            return
        self._forward.add(self._prefill_ms / 1e3)
        self._prefill.running -= 1
        self._prefill.looked_up(len(answer.question.prompt), 0)
        self._copying += 1
        self._where[id(answer)] = "copy"
        asyncio.get_running_loop().call_later(self._spec.transfer_ms / 1e3, self._give, answer)

    def _give(self, answer: Answer) -> None:
        if answer.over:
            return
        self._copying -= 1
        self._where[id(answer)] = "decode"
        self._latency_ms.add(self._spec.transfer_ms)
        self._megabytes.add(len(answer.question.prompt) * self._spec.token_bytes / _MIB)
        self._decode.submit(answer)
