"""Samples, segments and artifacts: fenced, idempotent, stored under server-made names."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.accounts.models import User
from controlplane.errors import FencedError, QuotaError
from controlplane.evidence import selectors
from controlplane.evidence.models import SampleChunk
from controlplane.evidence.services import append_samples, last_seq, store_artifact, store_segment
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import retry_run

MakeRun = Callable[..., Run]


def samples(first: int, last: int) -> list[tuple[int, dict[str, Any]]]:
    return [(seq, {"waiting": seq * 10}) for seq in range(first, last + 1)]


def written(folder: Path, content: str = "{}") -> dict[str, Any]:
    path = folder / "made-by-the-run"
    path.write_text(content)
    return {"path": path, "sha256": hashlib.sha256(content.encode()).hexdigest()}


class TestAppendSamples:
    def test_what_was_stored_is_read_back_after_any_number(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        for first, last in ((1, 5), (6, 6), (7, 12)):
            assert append_samples(run_id=run.pk, attempt=1, samples=samples(first, last)) == last
        for after in range(14):
            found = selectors.samples_after(run=run, attempt=1, seq=after)
            assert found == [{"seq": n, "waiting": n * 10} for n in range(after + 1, 13)]
        limited = selectors.samples_after(run=run, attempt=1, seq=2, limit=4)
        assert [row["seq"] for row in limited] == [3, 4, 5, 6]

    def test_repeats_and_overlaps_store_each_sample_once(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        for first, last in ((1, 5), (1, 5), (1, 8), (4, 6), (6, 10)):
            append_samples(run_id=run.pk, attempt=1, samples=samples(first, last))
        assert [row["seq"] for row in selectors.samples_after(run=run, attempt=1, seq=0)] == list(range(1, 11))
        assert last_seq(run_id=run.pk, attempt=1) == 10

    def test_a_gap_is_refused(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        append_samples(run_id=run.pk, attempt=1, samples=samples(1, 2))
        with pytest.raises(ValueError, match="sample 4 follows sample 2"):
            append_samples(run_id=run.pk, attempt=1, samples=samples(4, 5))
        with pytest.raises(ValueError, match="not consecutive"):
            append_samples(run_id=run.pk, attempt=1, samples=[*samples(3, 3), *samples(5, 5)])

    def test_an_old_attempt_is_fenced_and_its_samples_stay(self, make_run: MakeRun, owner: User) -> None:
        run = make_run(State.RUNNING)
        append_samples(run_id=run.pk, attempt=1, samples=samples(1, 3))
        Run.objects.filter(pk=run.pk).update(state=State.LOST)
        retry_run(run=run, user=owner)
        with pytest.raises(FencedError):
            append_samples(run_id=run.pk, attempt=1, samples=samples(4, 4))
        with pytest.raises(FencedError):
            append_samples(run_id=run.pk, attempt=2, samples=samples(1, 1))
        assert len(selectors.samples_after(run=run, attempt=1, seq=0)) == 3

    def test_beyond_the_limit_nothing_more_is_kept_and_nothing_fails(self, make_run: MakeRun, settings: Any) -> None:
        settings.RUN_SAMPLES_MAX = 4
        run = make_run(State.RUNNING)
        assert append_samples(run_id=run.pk, attempt=1, samples=samples(1, 4)) == 4
        assert append_samples(run_id=run.pk, attempt=1, samples=samples(5, 9)) == 4
        assert append_samples(run_id=run.pk, attempt=1, samples=samples(10, 11)) == 4
        assert SampleChunk.objects.count() == 1


class TestStoreSegment:
    def test_it_lies_under_run_and_attempt_and_repeats_harmlessly(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(State.RUNNING)
        one: dict[str, Any] = {"run_id": run.pk, "attempt": 1, "number": 3, "records": 1, **written(tmp_path)}
        row = store_segment(**one)
        assert row.file.name == f"runs/{run.pk}/1/segment-000003.jsonl"
        assert (row.bytes, row.records, row.file.read()) == (2, 1, b"{}")
        assert store_segment(**one).pk == row.pk
        assert len(list(Path(row.file.path).parent.iterdir())) == 1

    def test_a_file_left_by_a_try_that_ended_half_way_is_replaced(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(State.RUNNING)
        one: dict[str, Any] = {"run_id": run.pk, "attempt": 1, "number": 1, "records": 1, **written(tmp_path)}
        row = store_segment(**one)
        Path(row.file.path).write_text("half")
        row.delete()
        again = store_segment(**one)
        assert again.file.name == row.file.name
        assert again.file.read() == b"{}"

    def test_content_that_is_not_what_was_announced_is_refused(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(State.RUNNING)
        file = written(tmp_path) | {"sha256": "0" * 64}
        with pytest.raises(ValueError, match="has digest"):
            store_segment(run_id=run.pk, attempt=1, number=1, records=1, **file)
        assert not run.segments.exists()

    def test_an_old_attempt_is_fenced(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(State.FAILED)
        with pytest.raises(FencedError):
            store_segment(run_id=run.pk, attempt=1, number=1, records=1, **written(tmp_path))

    def test_evidence_of_one_attempt_is_bounded(self, make_run: MakeRun, tmp_path: Path, settings: Any) -> None:
        settings.RUN_EVIDENCE_MAX_BYTES = 3
        run = make_run(State.RUNNING)
        store_segment(run_id=run.pk, attempt=1, number=1, records=1, **written(tmp_path))
        with pytest.raises(QuotaError, match="HEADWAY_EVIDENCE_MAX_MB"):
            store_segment(run_id=run.pk, attempt=1, number=2, records=1, **written(tmp_path))


class TestArtifacts:
    def test_an_artifact_is_opened_by_its_row(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(State.RUNNING)
        store_artifact(run_id=run.pk, attempt=1, name="summary.json", **written(tmp_path, '{"a": 1}'))
        found = selectors.open_artifact(run=run, attempt=1, name="summary.json")
        assert found is not None
        assert found[1].read() == b'{"a": 1}'
        assert [row.name for row in selectors.artifacts(run=run)] == ["summary.json"]
        assert not selectors.artifacts(run=run, attempt=2).exists()

    @pytest.mark.parametrize(
        "name", ["../../headway.sqlite3", "/etc/passwd", "a.json/../b.json", "", "x", "a.json\n", "a.sh"]
    )
    def test_no_other_name_is_stored_or_opened(self, make_run: MakeRun, tmp_path: Path, name: str) -> None:
        run = make_run(State.RUNNING)
        with pytest.raises(ValueError, match="is not the name of an artifact"):
            store_artifact(run_id=run.pk, attempt=1, name=name, **written(tmp_path))
        assert selectors.open_artifact(run=run, attempt=1, name=name) is None
