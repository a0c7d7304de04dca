"""Other simulators on the workloads of `bench.core`, each in an environment of its own.

A peer's program is `bench/peers/peer_NAME.py`, run by the interpreter that `VARIABLES` tells. It reads what to
simulate as one JSON object (`Load.asked`), the requests from a file in Mooncake's layout, and answers with one: CPU
seconds, requests finished, output tokens and peak memory. Request counts are cut for those that would take minutes.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.process import HERE, PeerFailedError, PeerMissingError, interpreter
from scheduler_core.types.arrival import PlannedRequest

PEERS = {"dynamo": 100_000, "vidur": 1_000, "sched_sim": 1_000}
"""Name to the most requests it is given."""

VARIABLES = {
    "dynamo": "HEADWAY_DYNAMO_PYTHON",
    "vidur": "HEADWAY_VIDUR_PYTHON",
    "sched_sim": "HEADWAY_SCHED_SIM_PYTHON",
}
"""Name to the environment variable with the interpreter in which it is installed."""

HASH_TOKENS = 512
LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated: requests that arrive, and the limits of each instance they run on.

    With ``decoders`` as many further instances decode what the ``replicas`` prefill.
    """

    requests: Iterable[PlannedRequest]
    size: int = 128
    token_budget: int = 512
    blocks: int = 16_384
    prefix: bool = False
    replicas: int = 1
    router: str = "round_robin"
    decoders: int = 0

    def asked(self, folder: Path, most: int) -> dict[str, Any]:
        """The question to a peer; its requests, at most ``most``, are written to ``folder``."""
        path, made = folder / "requests.jsonl", 0
        with path.open("w") as file:
            for request in islice(self.requests, most):
                blocks = -(-request.prompt_tokens // HASH_TOKENS)
                row = {
                    "timestamp": round(request.arrival_ns / 1e6),
                    "input_length": request.prompt_tokens,
                    "output_length": request.output_tokens,
                    "hash_ids": list(range(made, made + blocks)),  # no prompt begins as another does
                }
                made += blocks
                file.write(json.dumps(row) + "\n")
        names = ("size", "token_budget", "blocks", "prefix", "replicas", "router", "decoders")
        return {"requests": str(path), "hash_tokens": HASH_TOKENS} | {name: getattr(self, name) for name in names}


def simulate(name: str, load: Load) -> dict[str, float]:
    """One peer's answer to ``load``, with ``requests_per_cpu_s``.

    Raises:
        PeerMissingError: it is not installed here.
        PeerFailedError: it crashed, took more than `LIMIT_S`, or left requests or tokens out.
    """
    python = interpreter(VARIABLES[name])
    with TemporaryDirectory() as folder:
        asked = load.asked(Path(folder), PEERS[name])
        rows = [json.loads(line) for line in Path(asked["requests"]).read_text().splitlines()]
        try:
            done = subprocess.run(
                [python, str(HERE / f"peer_{name}.py")],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=True,
            )
        except subprocess.TimeoutExpired:
            raise PeerFailedError(f"{len(rows)} requests were not done after {LIMIT_S:.0f} s") from None
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerFailedError(f"it ended with status {error.returncode}: {last}") from None
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    due = sum(row["output_length"] for row in rows)
    if answer["finished"] != len(rows) or answer["output_tokens"] != due:
        raise PeerFailedError(
            f"{answer['finished']} of {len(rows)} requests finished, with {answer['output_tokens']} of {due} tokens"
        )
    return {**answer, "requests_per_cpu_s": len(rows) / answer["cpu_s"]}


def beside(ours: Mapping[str, float], loads: Mapping[str, Load], names: Iterable[str] = tuple(PEERS)) -> dict[str, Any]:
    """Figures of each of the peers ``names``, with how many times faster ours is; else the reason it has none.

    ``ours`` and ``loads`` have the same names, those of the figures (requests per CPU second).
    """
    figures: dict[str, Any] = {}
    for name in names:
        its = figures[name] = dict[str, Any]()
        for figure, load in loads.items():
            try:
                speed = simulate(name, load)["requests_per_cpu_s"]
            except PeerMissingError as missing:
                figures[name] = str(missing)
                break
            except PeerFailedError as failed:
                its[figure] = str(failed)
                continue
            its[figure] = round(speed)
            its[f"{figure}_ratio_x"] = round(ours[figure] / speed, 1)
    return figures
