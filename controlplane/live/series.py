"""Reduced series for charts: minimum and maximum per bucket, so that no spike is lost and nothing changes on refresh.

A bucket is one pixel wide. Buckets without samples are left out, so a gap stays a gap. The first and the last sample
of the range are always kept. With no more samples than would be sent anyway, the samples themselves are returned.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from controlplane.evidence.models import SampleChunk
from controlplane.runs.models import Run
from scheduler_core.spec.job import PoolSample, Sample

KEYS = tuple(name for name in Sample.model_fields if name not in ("t_s", "window_s", "pools"))
POOL_KEYS = tuple(PoolSample.model_fields)
MAX_WIDTH = 4000
DEFAULT_WIDTH = 600


def pool_key(group: str, name: str) -> str:
    """The key of a figure of one group of a cluster's instances."""
    return f"pools.{group}.{name}"


def known(key: str) -> bool:
    """Whether samples can have ``key``: one of `KEYS`, or a `pool_key` of whatever group."""
    if not key.startswith("pools."):
        return key in KEYS
    _pools, _, group_and_name = key.partition(".")
    return group_and_name.rpartition(".")[2] in POOL_KEYS


def value_of(sample: dict[str, Any], key: str) -> float | None:
    """What a sample has under ``key``; None when it is absent."""
    if not key.startswith("pools."):
        found: float | None = sample.get(key)
        return found
    group, _, name = key.removeprefix("pools.").rpartition(".")
    pool: dict[str, float] = (sample.get("pools") or {}).get(group) or {}
    return pool.get(name)


def iter_samples(run: Run, attempt: int, start_s: float | None, end_s: float | None) -> Iterator[dict[str, Any]]:
    """Stored samples of an attempt with ``start_s <= t_s <= end_s``, in order."""
    chunks = SampleChunk.objects.filter(run=run, attempt=attempt).order_by("first_seq")
    for chunk in chunks.iterator(chunk_size=50):
        for sample in chunk.samples:
            if (start_s is None or sample["t_s"] >= start_s) and (end_s is None or sample["t_s"] <= end_s):
                yield sample


def reduce(samples: Iterable[dict[str, Any]], keys: tuple[str, ...], width: int) -> dict[str, Any]:
    """Series of ``keys`` for a chart ``width`` pixels wide, as columns beside ``t_s``.

    ``bucketed`` false: raw samples. True: rows come in pairs per bucket, first the minima at the bucket's first time,
    then the maxima at its last, so that a line through them covers what the samples covered; ``n`` counts the samples.
    """
    rows = list(samples)
    answer: dict[str, Any] = {"n": len(rows), "last_seq": rows[-1]["seq"] if rows else 0, "bucketed": False}
    if len(rows) > 2 * width:
        answer["bucketed"] = True
        first, last = rows[0], rows[-1]
        rows = [first, *_buckets(rows[1:-1], keys, width, first["t_s"], last["t_s"]), last]
    answer["t_s"] = [row["t_s"] for row in rows]
    answer["series"] = {key: [row[key] if key in row else value_of(row, key) for row in rows] for key in keys}
    return answer


def _buckets(
    rows: list[dict[str, Any]], keys: tuple[str, ...], width: int, start_s: float, end_s: float
) -> Iterator[dict[str, Any]]:
    span = (end_s - start_s) or 1.0
    bucket: list[dict[str, Any]] = []
    place = 0
    for row in rows:
        index = min(width - 1, int((row["t_s"] - start_s) / span * width))
        if bucket and index != place:
            yield from _extremes(bucket, keys)
            bucket = []
        place = index
        bucket.append(row)
    if bucket:
        yield from _extremes(bucket, keys)


def _extremes(bucket: list[dict[str, Any]], keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The minima and the maxima of a bucket's present values; a value absent throughout stays absent."""
    low: dict[str, Any] = {"t_s": bucket[0]["t_s"]}
    high: dict[str, Any] = {"t_s": bucket[-1]["t_s"]}
    for key in keys:
        present = [value for row in bucket if (value := value_of(row, key)) is not None]
        low[key], high[key] = (min(present), max(present)) if present else (None, None)
    yield low
    yield high
