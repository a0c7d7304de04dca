"""``python -m gpu_runner.server.mock [BEHAVIOUR.json]``: prints ``{"port": N}`` and serves until it is ended."""

import asyncio
import json
import sys
from pathlib import Path

from gpu_runner.server.http.loop import run
from gpu_runner.server.mock.behaviour import Behaviour
from gpu_runner.server.mock.server import MockServer


async def _serve(behaviour: Behaviour) -> None:
    server = await MockServer(behaviour).listen()
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        # Ends with whoever started it: standard input closes when that process does.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else "{}"
    run(_serve(Behaviour.model_validate_json(text)))
