"""Vidur on a workload given as a file; runs in the interpreter of an environment with ``vidur``.

Written for 0.0.26. Its measured profiles are not part of the package, so a step takes a constant time here, and its
metric store is off: both only make it faster. Reads one JSON object from standard input, prints one; see
`bench.peers.simulators`.
"""

import json
import logging
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.chdir(tempfile.mkdtemp())  # it writes where it is started

from vidur._native.entities import ExecutionTime
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    SyntheticRequestGeneratorConfig,
)
from vidur.entities import Request
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor
from vidur.request_generator.synthetic_request_generator import SyntheticRequestGenerator
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

STEP_MS = 20.0


class ConstantTime(BaseExecutionTimePredictor):  # type: ignore[misc]
    """Every step takes `STEP_MS`."""

    def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
        return ExecutionTime(1, STEP_MS, *[0.0] * 13)


ConstantTime.__abstractmethods__ = frozenset()


def main() -> None:
    """Simulate once."""
    asked = json.load(sys.stdin)
    logging.disable(logging.WARNING)
    registered = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(registered)
    ExecutionTimePredictorRegistry.register(registered, ConstantTime)
    rows = [json.loads(line) for line in Path(asked["requests"]).read_text().splitlines()]
    requests = [Request(row["timestamp"] / 1e3, row["input_length"], row["output_length"]) for row in rows]
    SyntheticRequestGenerator.generate_requests = lambda self: requests
    simulator = Simulator(_config(asked))
    began = time.process_time()
    simulator.run()
    answer = {
        "cpu_s": time.process_time() - began,
        "finished": sum(request.completed for request in requests),
        "output_tokens": sum(request.num_processed_decode_tokens for request in requests),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(answer))


def _config(asked: dict[str, Any]) -> Any:
    off = dict.fromkeys(("write_metrics", "write_json_trace", "enable_chrome_trace", "store_plots"), False)
    return SimulationConfig(
        log_level="warning",
        cluster_config=ClusterConfig(
            num_replicas=asked["replicas"],
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            cache_config=CacheConfig(block_size=16, num_blocks=asked["blocks"], enable_prefix_caching=asked["prefix"]),
            replica_scheduler_config=SarathiSchedulerConfig(
                chunk_size=asked["token_budget"], batch_size_cap=asked["size"]
            ),
        ),
        request_generator_config=SyntheticRequestGeneratorConfig(),
        metrics_config=MetricsConfig(**off),
    )


if __name__ == "__main__":
    main()
