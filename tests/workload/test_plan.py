"""Plan files: written, read back, and refused when they are not what they say."""

import gzip
import json
from pathlib import Path

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.plan import ArrivalPlan
from tests.workload.examples import SPECS


@pytest.mark.parametrize("name", ["poisson", "people", "closed sessions", "profile"])
def test_a_plan_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    plan = freeze(parse(WorkloadSpec, SPECS[name]))
    plan.write(tmp_path / "plan")
    read = ArrivalPlan.read(tmp_path / "plan")
    assert (read.requests, read.block_size, read.notes, read.digest) == (
        plan.requests,
        plan.block_size,
        plan.notes,
        plan.digest,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["plan"], "no partial file is left"


def test_one_plan_is_one_file(tmp_path: Path) -> None:
    """No time stamp and no name is in the bytes."""
    plan = freeze(parse(WorkloadSpec, SPECS["poisson"]))
    for name in ("a", "b"):
        plan.write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_sums() -> None:
    plan = freeze(parse(WorkloadSpec, SPECS["constant"]))
    assert plan.prompt_tokens == sum(request.prompt_tokens for request in plan.requests)
    assert plan.output_tokens == sum(request.output_tokens for request in plan.requests)


HEAD = {"format": "headway-plan/1", "block_size": 16, "digest": "0" * 32, "notes": []}
ROW = [0, 0, 5, 5, 5, 1, "default", "default", None, 0, None, [], 0]


def packed(*lines: object) -> bytes:
    return gzip.compress("\n".join(map(json.dumps, lines)).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an arrival plan"),
        (b"at,in,out\n", "not an arrival plan"),
        (packed(HEAD, ROW)[:-9], "not an arrival plan"),
        (packed(HEAD)[:12] + b"\xff" * 20, "not an arrival plan"),
        (packed([1, 2]), "not an arrival plan"),
        (packed({"format": "headway-plan/9"}), "format is 'headway-plan/9'"),
        (packed({"format": "headway-plan/1"}, ROW), "not an arrival plan"),
        (packed(HEAD, ROW[:5]), "not an arrival plan"),
        (packed(HEAD, {"index": 0}), "not an arrival plan"),
        (packed(HEAD, [*ROW[:11], None, 0]), "not an arrival plan"),
        (packed(HEAD, ROW), "its rows do not match its digest"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(content)
    with pytest.raises(InputError, match=message):
        ArrivalPlan.read(tmp_path / "plan")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not an arrival plan"):
        ArrivalPlan.read(tmp_path / "none")
