"""Golden digests: one spec is one plan, in every process, under every hash seed, on every machine.

A digest here may change only together with ``headway-plan/1`` or ``headway-stream/1``, and then by intent: every stored
plan and every comparison across versions depends on them.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.traces.reader import read_trace
from tests.workload.examples import SPECS, TRACE_LINES

GOLDEN = {
    "constant": "dd0bbd93944dc74bc8364bb829e86b6e",
    "poisson": "afa67063e1566cb4a5a4934b30a00e91",
    "gamma": "6c63d38720e96d312c4158cedf3696bc",
    "closed": "4eef2d87fc26488f7b56de87e28d0a37",
    "ramp": "21b7ff194a05e4db75dedf2f975a13ab",
    "step": "90ccd0f1cff93095c0f289fc829a8631",
    "quantiles": "c4fc083d10d57e4f94a38f054eec37ae",
    "profile": "2dcd123c8e573a3aa8a05a162bb7cfbb",
    "sessions": "34fdf7dfc66bcd0f34d30f921a68eef4",
    "closed sessions": "47aa1fac74523b08a4f93635b7272093",
    "people": "2e033fb3ae556d38ff97110c50a5e66f",
    "trace": "0b1ef5a66b273968a2926cc878f58fe6",
    "spread trace": "f3326efc3f59429fbd11d5bf73d95192",
}

ROOT = Path(__file__).parents[2]
SCRIPT = """
import decimal, io, json, locale, sys
decimal.getcontext().prec = 6
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.traces.reader import read_trace
specs, rows = json.load(sys.stdin)
digests = {}
for name, data in specs.items():
    spec = parse(WorkloadSpec, data)
    trace = read_trace(io.BytesIO(rows.encode()), spec.trace) if spec.trace else None
    digests[name] = freeze(spec, trace=trace).digest
print(json.dumps(digests))
"""


@pytest.mark.parametrize("name", SPECS)
def test_digest(name: str, mooncake_bytes: bytes) -> None:
    spec = parse(WorkloadSpec, SPECS[name])
    trace = read_trace(io.BytesIO(mooncake_bytes), spec.trace) if spec.trace else None
    assert freeze(spec, trace=trace).digest == GOLDEN[name]


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_digests_in_other_processes(hash_seed: str) -> None:
    """Another hash seed, another locale and another decimal context change nothing."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([SPECS, "\n".join(map(json.dumps, TRACE_LINES))]),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == GOLDEN
