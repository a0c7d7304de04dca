"""Traces, plans and workloads."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.core.files.base import ContentFile

from controlplane.accounts.models import User
from controlplane.errors import ConflictError
from controlplane.workloads import selectors
from controlplane.workloads.models import ArrivalPlan, Dataset, Workload
from controlplane.workloads.services import (
    add_version,
    create_workload,
    delete_dataset,
    freeze,
    import_trace,
    inspect_trace,
    preview,
    set_archived,
)
from scheduler_core.types.errors import InputError
from scheduler_core.workload.plan import ArrivalPlan as FrozenPlan
from tests.samples import WORKLOAD

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.0000000,{100 + second},{10 + second}\n" for second in range(5)
)


def upload(text: str = TRACE) -> ContentFile:  # type: ignore[type-arg]
    return ContentFile(text.encode(), name="../../evil.csv")


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class TestImportTrace:
    def test_it_keeps_the_file_byte_for_byte_under_a_name_of_its_own(self, owner: User) -> None:
        dataset = import_trace(owner=owner, file=upload(), name="Conversation")
        assert dataset.file.read() == TRACE.encode()
        assert dataset.bytes == len(TRACE)
        assert "evil" not in str(dataset.file.name)
        assert dataset.format == "azure-2023"
        assert dataset.inspection["rows"] == 5
        assert dataset.inspection["prompt_tokens"] == sum(range(100, 105))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "empty"),
            ("a,b\n1,2\n", "columns"),
            (TRACE + "2023-11-16 18:17:09.0000000,x,1\n", "line 7"),
        ],
    )
    def test_a_file_that_cannot_be_used_leaves_nothing_behind(
        self, owner: User, text: str, words: str, settings: Any
    ) -> None:
        with pytest.raises(InputError, match=words):
            import_trace(owner=owner, file=upload(text), name="x")
        assert not Dataset.objects.exists()
        assert stored(Path(settings.MEDIA_ROOT)) == []

    def test_a_row_that_cannot_be_written_leaves_no_file(
        self, owner: User, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: Any, **kwargs: Any) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(Dataset, "save", full)
        with pytest.raises(OSError, match="disk full"):
            import_trace(owner=owner, file=upload(), name="x")
        assert stored(Path(settings.MEDIA_ROOT)) == []

    def test_too_large_and_unknown_options_are_said(self, owner: User, settings: Any) -> None:
        with pytest.raises(InputError, match="unknown option; known: columns"):
            import_trace(owner=owner, file=upload(), name="x", options={"rows": "1-2"})
        settings.TRACE_UPLOAD_MAX_BYTES = 20
        with pytest.raises(InputError, match="HEADWAY_TRACE_MAX_MB"):
            import_trace(owner=owner, file=upload(), name="x")

    def test_inspecting_keeps_nothing(self, owner: User, settings: Any) -> None:
        assert inspect_trace(file=upload())["rows"] == 5
        assert stored(Path(settings.MEDIA_ROOT)) == []

    def test_an_outsider_may_not_and_sees_none(self, owner: User, teammate: User, outsider: AnonymousUser) -> None:
        with pytest.raises(PermissionDenied):
            import_trace(owner=outsider, file=upload(), name="x")  # type: ignore[arg-type]
        dataset = import_trace(owner=owner, file=upload(), name="x")
        assert list(selectors.datasets_visible_to(teammate)) == [dataset]
        assert not selectors.datasets_visible_to(outsider).exists()


def gateway_log(*rows: dict[str, Any]) -> ContentFile:  # type: ignore[type-arg]
    plain = {"startTime": 100.0, "prompt_tokens": 64, "completion_tokens": 4}
    return ContentFile("\n".join(json.dumps(plain | row) for row in rows).encode(), name="gateway.jsonl")


CLIENT = {
    "a-trace.csv": "0,5,1,Gamma,1.0,0.2\n",
    "a-dataset.json": json.dumps({"0": {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"}}),
}


class TestImportLog:
    def test_a_log_becomes_a_trace_and_its_text_is_gone(self, owner: User, settings: Any) -> None:
        """Two prompts with the same 256 characters, 64 tokens: 4 blocks each, all of the second reusable; 16 were hit.

        The third row says no prompt tokens, so it is left out with its line.
        """
        secret = [{"role": "user", "content": "secret! " * 32}]
        usage = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 16}}}
        first: dict[str, Any] = {"messages": secret, "metadata": usage}
        rows = [first, {**first, "startTime": 101.5}]
        file = gateway_log(*rows, {"prompt_tokens": None})
        dataset = import_trace(owner=owner, file=file, name="x", format="litellm", options={"same_instant": "spread"})
        assert all(b"secret" not in path.read_bytes() for path in stored(Path(settings.MEDIA_ROOT)))
        found = dataset.inspection
        assert (found["rows"], found["span_s"], found["prefix_hit_share"]) == (2, 1.5, 0.5)
        assert (found["observed_hit_share"], found["same_instant"]) == (32 / 128, "spread")
        assert found["origin"]["kind"] == "litellm" and found["origin"]["files"][0]["name"] == "gateway.jsonl"
        assert found["origin"]["left_out"] == [{"reason": "rows without prompt_tokens", "rows": 1, "first": "line 3"}]
        plan = freeze(spec={"trace": {"dataset": dataset.pk}}, user=owner)
        assert (plan.requests, plan.prompt_tokens) == (2, 128)

    def test_what_the_reader_of_the_trace_refuses_is_named_by_the_line_of_the_log(self, owner: User) -> None:
        """More hits than prompt in the log's first line, which is the later request and so the trace's second row."""
        usage = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 65}}}
        file = gateway_log({"startTime": 109.0, "metadata": usage}, {"startTime": 101.0})
        with pytest.raises(InputError, match=r"^gateway\.jsonl line 1: .*65"):
            import_trace(owner=owner, file=file, name="x", format="litellm")

    def test_fitted_clients_are_drawn_the_same_by_seed(self, owner: User) -> None:
        def drawn(seed: int) -> Dataset:
            file, other = (ContentFile(text.encode(), name=name) for name, text in CLIENT.items())
            options = {"for_s": 20, "draw_seed": seed}
            return import_trace(owner=owner, file=file, more=[other], name="x", format="servegen", options=options)

        first, again, other = drawn(1), drawn(1), drawn(2)
        assert first.inspection["digest"] == again.inspection["digest"] != other.inspection["digest"]
        assert first.inspection["output_tokens"] == 5 * first.inspection["rows"]
        assert 60 < first.inspection["rows"] < 140

    @pytest.mark.parametrize(
        ("name", "text", "format_", "options", "words"),
        [
            ("my.log", "{", "litellm", {}, r"my\.log line 1: not JSON"),
            ("my.log", "hello\n", "vllm", {}, r"my\.log: holds no usable request"),
            ("my.log", "{}", "otlp", {"time_unit": "s"}, "options.time_unit: does not belong to a log"),
            ("t.csv", TRACE, "azure-2023", {"for_s": 5}, "options.for_s: belongs to format servegen"),
            ("a-trace.csv", "0,x\n", "servegen", {}, r"a-trace\.csv line 1"),
            ("a-trace.csv", CLIENT["a-trace.csv"], "servegen", {}, r"a-dataset\.json: is missing"),
            ("evil.csv", "0", "servegen", {}, "NAME-dataset.json"),
        ],
    )
    def test_what_is_wrong_names_file_and_line_and_nothing_is_kept(
        self, owner: User, settings: Any, name: str, text: str, format_: str, options: dict[str, Any], words: str
    ) -> None:
        file = ContentFile(text.encode(), name=f"../{name}")
        with pytest.raises(InputError, match=words):
            import_trace(owner=owner, file=file, name="x", format=format_, options=options)
        assert not stored(Path(settings.MEDIA_ROOT))

    def test_too_many_requests_and_files_are_refused(self, owner: User) -> None:
        file, other = (ContentFile(text.encode(), name=name) for name, text in CLIENT.items())
        with pytest.raises(InputError, match="about 5,000,000 requests would be drawn"):
            inspect_trace(file=file, more=[other], format="servegen", options={"for_s": 1_000_000})
        with pytest.raises(InputError, match="a trace is one file, here are 2"):
            inspect_trace(file=upload(), more=[upload()])

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (("a-trace.csv",), r"a-trace\.csv is a second file beside a-trace\.csv"),
            (("a-dataset.json", "a-dataset.json.gz"), r"a-dataset\.json\.gz is a second file beside a-dataset\.json"),
            (("a-dataset.json", "b-dataset.json"), r"b-dataset\.json has no NAME-trace\.csv beside it"),
        ],
    )
    def test_no_file_of_a_client_is_dropped(self, more: tuple[str, ...], words: str) -> None:
        first = ContentFile(CLIENT["a-trace.csv"].encode(), name="a-trace.csv")
        others = [ContentFile(CLIENT["a-dataset.json"].encode(), name=name) for name in more]
        with pytest.raises(InputError, match=words):
            inspect_trace(file=first, more=others, format="servegen")

    def test_a_packed_log_is_under_the_limit_unpacked_too(self, settings: Any) -> None:
        settings.TRACE_UPLOAD_MAX_BYTES = 2**20
        packed = ContentFile(gzip.compress(b" " * (2**20 + 1)), name="g.jsonl.gz")
        with pytest.raises(InputError, match=r"g\.jsonl\.gz is larger than 1 MiB once it is unpacked"):
            inspect_trace(file=packed, format="litellm")


class TestDeleteDataset:
    def test_row_and_file_go(self, owner: User, settings: Any, django_capture_on_commit_callbacks: Any) -> None:
        dataset = import_trace(owner=owner, file=upload(), name="x")
        with django_capture_on_commit_callbacks(execute=True):
            delete_dataset(dataset=dataset, user=owner)
        assert stored(Path(settings.MEDIA_ROOT)) == []

    def test_not_while_it_is_played_and_not_by_others(self, owner: User, teammate: User) -> None:
        dataset = import_trace(owner=owner, file=upload(), name="x")
        with pytest.raises(PermissionDenied):
            delete_dataset(dataset=dataset, user=teammate)
        create_workload(owner=owner, name="w", spec={"trace": {"dataset": dataset.pk}})
        with pytest.raises(ConflictError, match="plays this trace"):
            delete_dataset(dataset=dataset, user=owner)


class TestFreeze:
    def test_equal_plans_are_stored_once(self, owner: User, teammate: User, settings: Any) -> None:
        first, second = freeze(spec=WORKLOAD, user=owner), freeze(spec=dict(WORKLOAD), user=teammate)
        assert first == second
        assert ArrivalPlan.objects.count() == 1
        assert len(stored(Path(settings.MEDIA_ROOT) / "plans")) == 1

    def test_the_stored_file_is_the_plan(self, owner: User) -> None:
        plan = freeze(spec=WORKLOAD, user=owner)
        with selectors.local_copy(plan.file) as path:
            frozen = FrozenPlan.read(path)
        assert (frozen.digest, len(frozen.requests)) == (plan.digest, 20)
        assert (plan.requests, plan.prompt_tokens, plan.output_tokens) == (20, 160, 80)

    def test_a_path_on_the_server_is_never_read(self, owner: User, tmp_path: Path) -> None:
        secret = tmp_path / "secret.csv"
        secret.write_text(TRACE)
        with pytest.raises(InputError, match="import the file first") as refused:
            freeze(spec={"trace": {"file": str(secret)}}, user=owner)
        assert refused.value.problems[0].where == "trace.file"

    def test_an_imported_trace_is_played_as_it_was_imported(self, owner: User, teammate: User) -> None:
        dataset = import_trace(owner=owner, file=upload(), name="x")
        plan = freeze(spec={"trace": {"dataset": dataset.pk, "rows": "1-3"}}, user=teammate)
        assert (plan.requests, plan.prompt_tokens) == (3, 100 + 101 + 102)

    def test_an_unknown_trace_is_named(self, owner: User) -> None:
        with pytest.raises(InputError, match="no imported trace 'trc_x'"):
            freeze(spec={"trace": {"dataset": "trc_x"}}, user=owner)

    def test_a_preview_stores_nothing(self, owner: User) -> None:
        shown = preview(spec=WORKLOAD, user=owner)
        assert shown["requests"] == 20
        assert not ArrivalPlan.objects.exists()


class TestWorkloads:
    def test_versions_count_up_and_equal_specs_make_none(self, owner: User) -> None:
        first = create_workload(owner=owner, name="chat", spec=WORKLOAD)
        assert (first.number, first.plan.requests) == (1, 20)
        assert add_version(workload=first.workload, user=owner, spec=WORKLOAD) == first
        second = add_version(workload=first.workload, user=owner, spec=WORKLOAD | {"requests": 10})
        assert (second.number, second.plan.requests) == (2, 10)
        first.refresh_from_db()
        assert first.spec["requests"] == 20

    def test_a_name_in_use_or_unusable_is_said_and_nothing_is_left(self, owner: User, teammate: User) -> None:
        create_workload(owner=owner, name="chat", spec=WORKLOAD)
        with pytest.raises(InputError, match="already have a workload named 'chat'"):
            create_workload(owner=owner, name="chat", spec=WORKLOAD)
        with pytest.raises(InputError, match="not a usable name"):
            create_workload(owner=owner, name="<script>", spec=WORKLOAD)
        assert Workload.objects.count() == 1
        create_workload(owner=teammate, name="chat", spec=WORKLOAD)

    def test_a_bad_spec_names_its_field(self, owner: User) -> None:
        with pytest.raises(InputError, match="did you mean 'requests'"):
            create_workload(owner=owner, name="x", spec=WORKLOAD | {"request": 3})

    def test_only_owner_and_staff_change_it(self, owner: User, teammate: User, staff: User) -> None:
        workload = create_workload(owner=owner, name="chat", spec=WORKLOAD).workload
        for change in (
            lambda who: add_version(workload=workload, user=who, spec=WORKLOAD),
            lambda who: set_archived(workload=workload, user=who, archived=True),
        ):
            with pytest.raises(PermissionDenied):
                change(teammate)
            change(staff)
        workload.refresh_from_db()
        assert workload.archived_at

    def test_everyone_signed_in_sees_it(self, owner: User, teammate: User, outsider: AnonymousUser) -> None:
        version = create_workload(owner=owner, name="chat", spec=WORKLOAD)
        assert list(selectors.visible_to(teammate)) == [version.workload]
        assert list(selectors.versions_visible_to(teammate)) == [version]
        assert not selectors.visible_to(outsider).exists()
        assert not selectors.versions_visible_to(outsider).exists()


def test_an_upload_is_read_in_chunks(owner: User) -> None:
    class Chunked(ContentFile):  # type: ignore[type-arg]
        def chunks(self, chunk_size: int | None = None) -> Any:
            return iter(lambda: self.file.read(7), b"")

        def read(self, *args: Any) -> Any:
            raise AssertionError("read at once")

    file = Chunked(b"")
    file.file = io.BytesIO(TRACE.encode())
    assert import_trace(owner=owner, file=file, name="x").bytes == len(TRACE)
