"""Dynamo's simulator on a workload given as a file; runs in the interpreter of an environment with ``ai-dynamo``.

Written for 1.6.1. Reads one JSON object from standard input, prints one; see `bench.peers.simulators`.
"""

import json
import resource
import sys
import time

from dynamo._core import run_mocker_trace_replay


def main() -> None:
    """Simulate once."""
    asked = json.load(sys.stdin)
    engine = {
        "num_gpu_blocks": asked["blocks"],
        "block_size": 16,
        "max_num_seqs": asked["size"],
        "max_num_batched_tokens": asked["token_budget"],
        "enable_prefix_caching": asked["prefix"],
        "enable_chunked_prefill": True,
    }
    if asked["decoders"]:
        where = {
            "prefill_engine_args": {"engine": engine | {"worker_type": "prefill"}},
            "decode_engine_args": {"engine": engine | {"worker_type": "decode"}},
            "num_prefill_workers": asked["replicas"],
            "num_decode_workers": asked["decoders"],
        }
    else:
        where = {"extra_engine_args": {"engine": engine}, "num_workers": asked["replicas"]}
    began = time.process_time()
    result = run_mocker_trace_replay(
        [asked["requests"]], trace_block_size=asked["hash_tokens"], router_mode=asked["router"], **where
    )
    answer = {
        "cpu_s": time.process_time() - began,
        "finished": result.summary["completed_requests"],
        "output_tokens": result.summary["total_output_tokens"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
