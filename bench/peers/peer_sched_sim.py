"""sched-sim on a workload given as a file; runs in the interpreter of an environment with ``sched-sim``.

Written for 0.2.1. Reads one JSON object from standard input, prints one; see `bench.peers.simulators`.
"""

import json
import resource
import sys
import time
from pathlib import Path

from sched_sim.core.event_engine import Simulator
from sched_sim.core.request import Request
from sched_sim.hardware.presets import get_hardware_profile
from sched_sim.memory.preemption import PreemptionMode
from sched_sim.schedulers.factory import create_scheduler


def main() -> None:
    """Simulate once."""
    asked = json.load(sys.stdin)
    hardware = get_hardware_profile("a100")
    scheduler = create_scheduler(
        "chunked",
        hardware,
        PreemptionMode.RECOMPUTE,
        token_budget=asked["token_budget"],
        max_batch_size=asked["size"],
        enable_prefix_caching=asked["prefix"],
    )
    memory = scheduler.block_manager
    memory.total_gpu_blocks = asked["blocks"]
    memory.free_gpu_blocks = list(range(asked["blocks"]))
    simulator = Simulator(hardware, scheduler)
    rows = [json.loads(line) for line in Path(asked["requests"]).read_text().splitlines()]
    began = time.process_time()
    simulator.submit_workload(
        [
            Request(
                request_id=str(index),
                arrived_at=row["timestamp"] / 1e3,
                prompt_tokens=row["input_length"],
                output_tokens=row["output_length"],
            )
            for index, row in enumerate(rows)
        ]
    )
    simulator.run()
    answer = {
        "cpu_s": time.process_time() - began,
        "finished": sum(request.completed_at is not None for request in simulator.all_requests),
        "output_tokens": sum(request.decoded_tokens for request in simulator.all_requests),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
