"""A short window under the server's own profiler, after a run: traffic of the same plan, none of it measured."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpu_runner.server.client.load import Load
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.loop import run
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import NoAnswerError, ask
from scheduler_core.types.client_records import Profiled
from scheduler_core.types.time import NS_PER_S, Ns

START, STOP = "/start_profile", "/stop_profile"
ANSWER_S = 120.0  # a profile is written before the server answers
DRAIN_S = 30.0
_OTHER_SALT = 0x9E3779B97F4A7C15  # so that nothing of the run is found in a prefix cache


def profile(plan: ShardPlan, seconds: float, at_ns: Ns, stop: Callable[[], bool]) -> Profiled:
    """Start the profiler, play what arrives in the plan's first ``seconds``, and stop it, whatever happened between.

    vLLM and SGLang offer a profiler at the same two addresses, where they were started with one.
    """
    requests = tuple(r for r in plan.requests if not r.after and r.arrival_ns < seconds * NS_PER_S)
    told = _post(plan.origin, plan.headers, START)
    if told:
        return Profiled(at_ns, 0.0, 0, told)
    began = time.monotonic()
    try:
        salted = replace(plan.manner, salt=plan.manner.salt ^ _OTHER_SALT)
        window = replace(plan, run=f"{plan.run}-profile", requests=requests, manner=salted, warm=0, feed_back=False)
        _play(window, lambda: stop() or time.monotonic() - began > seconds + DRAIN_S)
    finally:
        problem = _post(plan.origin, plan.headers, STOP)
    return Profiled(at_ns, time.monotonic() - began, len(requests), problem)


def _play(plan: ShardPlan, stop: Callable[[], bool]) -> None:
    load = Load(plan, 1)
    try:
        load.open()
        load.start()
        for _ in load.events(stop, lambda: None):
            pass
    finally:
        load.close()


def _post(origin: Origin, headers: Mapping[str, str], path: str) -> str:
    """Empty when the server did it, else why not."""

    async def asked() -> str:
        pool = Pool(origin, limit=1)
        try:
            answer = await ask(pool, "POST", path, headers=headers, timeout_s=ANSWER_S)
        except NoAnswerError as error:
            return f"{path}: {error}"
        finally:
            pool.close()
        return "" if answer.status == 200 else f"{path} answers with status {answer.status}"

    return run(asked())
