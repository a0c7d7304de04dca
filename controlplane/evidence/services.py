"""Writes of evidence: fenced by attempt, idempotent, files through the storage interface under server-made names."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Max, Sum

from controlplane.errors import QuotaError
from controlplane.evidence.models import Artifact, SampleChunk, Segment
from controlplane.live.groups import announce_run
from controlplane.runs.services.leases import held_run

# Names become storage names and download names: plain words, of the two kinds that evidence has.
ARTIFACT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\.(parquet|json)")


def append_samples(*, run_id: str, attempt: int, samples: Sequence[tuple[int, dict[str, Any]]]) -> int:
    """Store consecutive live samples ``(seq, values)``; the last sequence number now stored.

    One transaction. Writing the same samples again changes nothing (upsert on run, attempt and first number); a gap
    in the numbers is a fault of the run and a ``ValueError``. Beyond ``RUN_SAMPLES_MAX`` live samples are dropped (the
    evidence segments hold everything). `FencedError` when the attempt is not current.
    """
    if not samples:
        return last_seq(run_id=run_id, attempt=attempt)
    first, last = samples[0][0], samples[-1][0]
    if last > settings.RUN_SAMPLES_MAX:
        return last_seq(run_id=run_id, attempt=attempt)
    if [seq for seq, _ in samples] != list(range(first, last + 1)):
        raise ValueError(f"samples {first}..{last} are not consecutive")
    with transaction.atomic():
        held_run(run_id=run_id, attempt=attempt)
        stored = last_seq(run_id=run_id, attempt=attempt)
        if first > stored + 1:
            raise ValueError(f"sample {first} follows sample {stored}; the ones between are missing")
        fresh = [{"seq": seq, **values} for seq, values in samples if seq > stored]
        if fresh:
            SampleChunk.objects.update_or_create(
                run_id=run_id,
                attempt=attempt,
                first_seq=fresh[0]["seq"],
                defaults={"last_seq": last, "samples": fresh},
            )
            stored = last
        transaction.on_commit(lambda: announce_run(run_id, attempt=attempt, seq=stored))
    return stored


def last_seq(*, run_id: str, attempt: int) -> int:
    """Number of the newest stored sample of an attempt; 0 for none."""
    chunks = SampleChunk.objects.filter(run_id=run_id, attempt=attempt)
    return chunks.aggregate(last=Max("last_seq"))["last"] or 0


def store_segment(*, run_id: str, attempt: int, number: int, path: Path, records: int, sha256: str) -> Segment:
    """Upload closed segment ``number``; stored once, however often it is handed in.

    `FencedError` when the attempt is not current, ``ValueError`` when the file is not what its digest says
    or the attempt has stored another under that number (R33).
    """
    held_run(run_id=run_id, attempt=attempt)
    known = Segment.objects.filter(run_id=run_id, attempt=attempt, number=number).first()
    if known is not None:
        _unchanged(known, f"segment {number}", sha256)
        return known
    name, size = _upload(run_id=run_id, attempt=attempt, name=f"segment-{number:06d}.jsonl", path=path, sha256=sha256)
    with transaction.atomic():
        held_run(run_id=run_id, attempt=attempt)
        fields = {"file": name, "bytes": size, "records": records, "sha256": sha256}
        return Segment.objects.get_or_create(run_id=run_id, attempt=attempt, number=number, defaults=fields)[0]


def store_artifact(*, run_id: str, attempt: int, name: str, path: Path, sha256: str) -> Artifact:
    """Upload a finished file of an attempt, such as ``requests.parquet``. Errors as in `store_segment`.

    ``ValueError`` also for a name that is not a plain word ending in ``.parquet`` or ``.json``.
    """
    if not ARTIFACT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an artifact, such as requests.parquet or summary.json")
    held_run(run_id=run_id, attempt=attempt)
    known = Artifact.objects.filter(run_id=run_id, attempt=attempt, name=name).first()
    if known is not None:
        _unchanged(known, name, sha256)
        return known
    stored, size = _upload(run_id=run_id, attempt=attempt, name=name, path=path, sha256=sha256)
    with transaction.atomic():
        held_run(run_id=run_id, attempt=attempt)
        fields = {"file": stored, "bytes": size, "sha256": sha256}
        return Artifact.objects.get_or_create(run_id=run_id, attempt=attempt, name=name, defaults=fields)[0]


def _unchanged(known: Segment | Artifact, what: str, sha256: str) -> None:
    """Rule R33: what an attempt has stored is handed in again as it was; anything else is a ``ValueError``."""
    if known.sha256 != sha256:
        raise ValueError(
            f"R33: {what} of run {known.run_id}, attempt {known.attempt}, is stored with digest {known.sha256[:12]}…; "
            f"a write with digest {sha256[:12]}… is refused: results are appended, never overwritten"
        )


def _upload(*, run_id: str, attempt: int, name: str, path: Path, sha256: str) -> tuple[str, int]:
    """Check and copy a file into the storage; its storage name and size in bytes. No transaction is open here."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(f"{path.name} has digest {digest[:12]}…, its message said {sha256[:12]}…")
    size = path.stat().st_size
    if _stored_bytes(run_id, attempt) + size > settings.RUN_EVIDENCE_MAX_BYTES:
        limit = settings.RUN_EVIDENCE_MAX_BYTES // 2**20
        raise QuotaError(f"the evidence of one attempt may take {limit} MiB (HEADWAY_EVIDENCE_MAX_MB)")
    wanted = str(PurePosixPath("runs", run_id, str(attempt), name))
    if default_storage.exists(wanted):  # left by a try that ended before its row was written
        default_storage.delete(wanted)
    with path.open("rb") as stream:
        return default_storage.save(wanted, File(stream)), size


def _stored_bytes(run_id: str, attempt: int) -> int:
    segments = Segment.objects.filter(run_id=run_id, attempt=attempt).aggregate(total=Sum("bytes"))["total"]
    artifacts = Artifact.objects.filter(run_id=run_id, attempt=attempt).aggregate(total=Sum("bytes"))["total"]
    return (segments or 0) + (artifacts or 0)
