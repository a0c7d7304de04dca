"""Where a real vLLM is on this machine, and the launch template that starts it on the CPU."""

import json
import os
from pathlib import Path

from bench.peers.engines import folder

PYTHON = os.environ.get("HEADWAY_VLLM_PYTHON", "")
LENGTH = 1024
# One core computes, the other serves and sends: threads on both would wait for one another at every layer.
ENV = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_SERVER_DEV_MODE": "1",
}  # fmt: skip


def write_launch_file(path: Path) -> Path:
    """A launch file with one template, ``cpu``: a model with seeded weights, or that of ``HEADWAY_VLLM_MODEL``."""
    # In float32: a core without AVX-512 takes several times as long for bfloat16.
    model = os.environ.get("HEADWAY_VLLM_MODEL") or str(folder("demo-s"))
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "small",
        "--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}", "--max-model-len", str(LENGTH),
        "--enforce-eager",
    ]  # fmt: skip
    template = {"server": "vllm", "command": command, "env": ENV, "ready_s": 900}
    path.write_text(json.dumps({"templates": {"cpu": template}}))
    return path
