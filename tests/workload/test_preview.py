"""What pages show of a plan, by hand."""

import io
import json

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.preview import preview
from scheduler_core.workload.traces.reader import read_trace
from tests.workload.examples import SPECS


def test_preview_of_a_trace_by_hand(mooncake_bytes: bytes) -> None:
    """Times 0, 0, 3, 6 s: three gaps in 6 s are 0.5/s; prompts 400, 513, 1000, 1024 have the median 756.5.

    Ids [1 2], [1 3], [1 4], [5]: seven blocks, of which the second and third row can reuse block 1.
    """
    spec = parse(WorkloadSpec, {"trace": {"file": "given"}})
    assert spec.trace is not None
    found = preview(freeze(spec, trace=read_trace(io.BytesIO(mooncake_bytes), spec.trace)))
    assert (found["requests"], found["timed"], found["dependent"]) == (4, 4, 0)
    assert (found["span_s"], found["rate_rps"], found["same_instant_groups"]) == (6.0, 0.5, 1)
    assert found["prompt_tokens"]["sum"] == 2937
    assert found["prompt_tokens"]["quantiles"]["p50"] == 756.5
    assert found["prompt_tokens"]["quantiles"]["p100"] == 1024
    assert found["prefix"] == {"requests": 4, "blocks": 7, "hit_blocks": 2, "hit_share": 2 / 7}
    counts = found["arrivals"]["counts"]
    assert (len(counts), sum(counts), counts[0], counts[29], counts[59]) == (60, 4, 2, 1, 1)


def test_preview_of_a_closed_loop_says_what_depends_on_answers() -> None:
    found = preview(freeze(parse(WorkloadSpec, SPECS["closed"])))
    assert (found["timed"], found["dependent"], found["rate_rps"], found["span_s"]) == (3, 47, None, 0.0)
    assert found["arrivals"]["counts"] == [3]


def test_previews_are_plain_json() -> None:
    for name in ("poisson", "sessions", "people", "profile"):
        found = preview(freeze(parse(WorkloadSpec, SPECS[name])))
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert sum(found["arrivals"]["counts"]) == found["timed"]
        assert sum(found["tiers"].values()) == sum(found["tenants"].values()) == found["requests"] == 50
