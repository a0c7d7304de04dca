"""``python -m gpu_runner.server.mock [BEHAVIOUR.json] [--port N] [FLAGS]``: prints ``{"port": N}`` and serves.

It ends with whoever started it, or, given a port, when it is told to. Of a scheduled mock, flags of the server that it
plays set its policy, so that it can stand in a launch template.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_runner.server.http.loop import run
from gpu_runner.server.mock.behaviour import Behaviour
from gpu_runner.server.mock.server import MockServer


async def _serve(behaviour: Behaviour, port: int) -> None:
    server = await MockServer(behaviour).listen(port)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        if port:
            await server.serve_forever()
        # Standard input closes when the process that started this one ends.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def with_flags(behaviour: Behaviour, flags: Sequence[str]) -> Behaviour:
    """``behaviour`` with the policy that a server's ``flags`` ask for; `InputError` for one without a value."""
    scheduled = behaviour.scheduled
    if scheduled is None:
        return behaviour
    from gpu_runner.server.adapters.flags import KNOBS, from_flags, settings_of  # every policy's parts with it
    from scheduler_core.spec.variants import turned

    if behaviour.dialect not in KNOBS:
        return behaviour
    asked, _ = from_flags(flags, behaviour.dialect)
    policy = turned(scheduled.policy, settings_of(asked))
    return behaviour.model_copy(update={"scheduled": scheduled.model_copy(update={"policy": policy})})


def main(arguments: Sequence[str]) -> None:
    """Serve until the end."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.server.mock", description=__doc__)
    parser.add_argument("behaviour", nargs="?", type=Path)
    parser.add_argument("--port", type=int, default=0)
    known, flags = parser.parse_known_args(arguments)
    text = known.behaviour.read_text(encoding="utf-8") if known.behaviour is not None else "{}"
    run(_serve(with_flags(Behaviour.model_validate_json(text), flags), known.port))


if __name__ == "__main__":
    main(sys.argv[1:])
