"""The mock's routes: completions, metrics, identity, cache reset, and the truth about what it sent."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from gpu_runner.server.client.naming import index_of
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.engines import Engine, ScriptedEngine
from gpu_runner.server.mock.separated import SeparatedEngine
from gpu_runner.server.mock.stats import Stats
from gpu_runner.server.mock.stream import Answer, Question
from gpu_runner.server.mock.wire import Exchange, Wire

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
_PATHS = {"/v1/completions": False, "/v1/chat/completions": True}


class MockServer:
    """Answers one connection after another by its `Behaviour`.

    ``truth`` holds, of every completion, the index in its x-request-id, when it came in, and when each chunk was
    handed to the socket with its tokens (monotonic ns of this host), and whether the profiler ran at its end.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.stats = Stats(behaviour.publish_delay_ms)
        self.truth: list[dict[str, Any]] = []
        self._profiling = False
        self._engine, self._pools = _engine_of(behaviour, self.stats)
        self._pages: dict[str, Callable[[], Any]] = {
            "/v1/models": self._models,
            "/health": dict,
            "/mock/truth": lambda: self.truth,
            **self._identity(),
        }

    async def listen(self, port: int = 0) -> asyncio.Server:
        """Listen on loopback; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Wire(self.serve), "127.0.0.1", port, backlog=4096)

    def serve(self, exchange: Exchange) -> None:
        """Answer one request."""
        path = exchange.asked.path.partition("?")[0]
        wanted = f"Bearer {self.behaviour.api_key}"
        if self.behaviour.api_key and exchange.asked.headers.get("authorization") != wanted:
            exchange.answer(401, b'{"error":{"message":"Unauthorized"}}')
        elif self.behaviour.only_uuids and exchange.asked.id and index_of(exchange.asked.id) is None:
            exchange.answer(400, b"")
        elif path in _PATHS:
            self._complete(exchange, chat=_PATHS[path])
        elif (
            path == "/metrics" and self.behaviour.metrics and self._pools is None and self.behaviour.dialect != "openai"
        ):
            page = self.stats.page(self.behaviour.dialect, self.behaviour.model, self.behaviour.hidden_metrics)
            exchange.answer(200, page.encode(), "text/plain; version=0.0.4")
        elif self._pools is not None and path in ("/prefill/metrics", "/decode/metrics"):
            page = self._pools.page(path.split("/")[1], self.behaviour.model)
            exchange.answer(200, page.encode(), "text/plain; version=0.0.4")
        elif path in ("/reset_prefix_cache", "/flush_cache") and exchange.asked.method == "POST":
            self._engine.reset_cache()
            exchange.answer(200, b"{}")
        elif path in ("/start_profile", "/stop_profile") and self.behaviour.profiler:
            self._profiling = path == "/start_profile"
            exchange.answer(200, b"")
        elif path in self._pages:
            exchange.answer(200, json.dumps(self._pages[path]()).encode())
        else:
            exchange.answer(404, b'{"detail":"Not Found"}')

    def _complete(self, exchange: Exchange, *, chat: bool) -> None:
        try:
            question = Question.read(exchange.asked.body, chat=chat)
        except (ValueError, AttributeError) as error:
            body = {"error": {"message": str(error), "type": "BadRequestError", "code": 400}}
            exchange.answer(400, json.dumps(body).encode())
            return
        index = index_of(exchange.asked.id)
        answer = Answer(exchange, question, self.behaviour, -1 if index is None else index, self._ended)
        self.stats.arrived(answer)
        if not answer.answer_at_once():
            self._engine.submit(answer)

    def _ended(self, answer: Answer, reason: str) -> None:
        if answer.fault not in ("plain_json", "empty_stream", "refused", "failed", "silent"):
            self._engine.leave(answer)
        self.stats.ended(answer, reason)
        self.truth.append(
            {
                "number": answer.number,
                "id": answer.exchange.asked.id,
                "reason": reason,
                "ids": answer.question.prompt,
                "messages": answer.question.messages,
                "cached": answer.cached_tokens,
                "sent": answer.sent,
                "profiled": self._profiling,
            }
        )

    def _models(self) -> dict[str, Any]:
        owner = {"vllm": "vllm", "sglang": "sglang"}.get(self.behaviour.dialect, "owner")
        return {
            "object": "list",
            "data": [
                {"id": self.behaviour.model, "object": "model", "owned_by": owner, "max_model_len": self._length()}
            ],
        }

    def _length(self) -> int:
        scheduled = self.behaviour.scheduled
        return 32_768 if scheduled is None else scheduled.profile.model_length

    def _identity(self) -> dict[str, Callable[[], Any]]:
        """Pages by which a server is told from others; one of them names its settings."""
        scheduled = self.behaviour.scheduled
        batch = scheduled.policy.batch if scheduled is not None else None
        budget, size = (batch.token_budget, batch.size) if batch is not None else (None, None)
        if self.behaviour.dialect == "vllm":
            pages: dict[str, Callable[[], Any]] = {"/version": lambda: {"version": VERSIONS["vllm"]}}
            if self.behaviour.dev_mode and scheduled is not None:
                config = {
                    "scheduler_config": {"max_num_batched_tokens": budget, "max_num_seqs": size, "policy": "fcfs"},
                    "cache_config": {"block_size": self.stats.block_size, "num_gpu_blocks": self.stats.kv_blocks},
                }
                pages["/server_info"] = lambda: {"vllm_config": config}
            return pages
        if self.behaviour.dialect == "sglang":
            info = {
                "version": VERSIONS["sglang"], "chunked_prefill_size": budget, "max_running_requests": size,
                "schedule_policy": "fcfs", "page_size": self.stats.block_size, "disable_radix_cache": False,
                "max_total_num_tokens": self.stats.kv_blocks * self.stats.block_size,
                "disaggregation_mode": "null" if self._pools is None else "prefill",
            }  # fmt: skip
            return {"/get_server_info": lambda: info, "/server_info": lambda: info}
        return {}


def _engine_of(behaviour: Behaviour, stats: Stats) -> tuple[Engine, SeparatedEngine | None]:
    """Where tokens come from, and the same with pools of its own if it has some."""
    if behaviour.scheduled is not None:
        from gpu_runner.server.mock.scheduled import ScheduledEngine  # the planner: a scripted mock starts without

        return ScheduledEngine(behaviour.scheduled, stats), None
    script = behaviour.scripted or Scripted()
    if behaviour.separated is not None:
        pools = SeparatedEngine(script, behaviour.separated, stats)
        return pools, pools
    return ScriptedEngine(script, stats), None
