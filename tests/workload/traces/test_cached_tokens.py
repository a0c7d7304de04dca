"""What a server found in its prefix cache travels with the traffic it logged, and changes nothing that is played."""

import io
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.traces.inspection import inspect
from scheduler_core.workload.traces.reader import read_trace

ROWS = "arrival_s,prompt_tokens,output_tokens,hit\n0,100,5,50\n1,100,5,\n2,300,5,0\n3,100,5,100\n"
FORM: dict[str, Any] = {"format": "csv", "time_unit": "s", "columns": {"cached_tokens": "hit"}}


def trace(text: str = ROWS, **changed: Any) -> tuple[Any, Any]:
    form = parse(Trace, {"file": "-", **FORM, **changed})
    return read_trace(io.BytesIO(text.encode()), form), form


def test_rows_that_do_not_say_count_neither_way(tmp_path: Path) -> None:
    """150 of the 500 prompt tokens of the three rows that say: 30 %; of the last two rows 100 of 400."""
    data, _ = trace()
    assert data.observed_hit_share() == 0.3
    assert data.observed_hit_share(2, 4) == 0.25
    assert data.observed_hit_share(1, 2) is None
    assert inspect(io.BytesIO(ROWS.encode()), **FORM).observed_hit_share == 0.3


def test_the_plan_keeps_the_share_of_the_rows_it_plays_beside_its_digest(tmp_path: Path) -> None:
    data, form = trace(rows="3-4")
    plan = freeze(parse(WorkloadSpec, {"trace": form.model_dump(exclude_none=True)}), trace=data)
    assert plan.observed_hit_share == 0.25
    plan.write(tmp_path / "plan")
    again = ArrivalPlan.read(tmp_path / "plan")
    assert again.observed_hit_share == 0.25
    assert again.digest == ArrivalPlan(plan.requests, plan.block_size).digest


def test_more_hits_than_prompt_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match="line 2: hit is 101, more than the 100 tokens of the prompt"):
        trace(ROWS.replace("0,100,5,50", "0,100,5,101"))
