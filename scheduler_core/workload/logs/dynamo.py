"""Dynamo's agent and request traces (``dynamo.agent.trace.v1``, ``dynamo.request.trace.v1``) as requests.

A ``request_end`` row is a request: its trajectory is a session here, its kind of session a tenant. Replay hashes chain
over ``trace_block_size`` tokens each, as block identities do here. Rows of tools are not requests.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_core.types.time import NS_PER_MS, Ns
from scheduler_core.workload.logs.hashing import salted
from scheduler_core.workload.logs.lines import objects
from scheduler_core.workload.logs.rows import LoggedRequest, Row, UnusableRowError, count


def dynamo(path: Path) -> Iterator[Row]:
    """Requests of a trace file."""
    sizes: set[int] = set()
    for place, data in objects(path):
        event = data.get("event", data) if isinstance(data, dict) else data
        if isinstance(event, dict) and event.get("event_type") == "request_end":
            yield Row(place, partial(_request, event, sizes))


def _request(event: Mapping[str, Any], sizes: set[int], salt: bytes) -> LoggedRequest:
    said, context = event.get("request") or {}, event.get("agent_context") or {}
    replay = said.get("replay") or {}
    size = count(replay, "trace_block_size") if replay else None
    if size is not None:
        sizes.add(size)
        if len(sizes) > 1:
            sizes.discard(size)
            raise UnusableRowError("rows of another trace_block_size than the first")
    hashes = replay.get("input_sequence_hashes") or []
    return LoggedRequest(
        _arrival(event, said),
        count(replay, "input_length") if replay else count(said, "input_tokens"),
        count(said, "output_tokens"),
        tenant=str(context.get("session_type_id") or ""),
        session=str(context.get("trajectory_id") or context.get("session_id") or ""),
        blocks=tuple(salted(int(item), salt) for item in hashes),
        block_size=size,
        cached_tokens=count(said, "cached_tokens") if "cached_tokens" in said else None,
    )


def _arrival(event: Mapping[str, Any], said: Mapping[str, Any]) -> Ns:
    if "request_received_ms" in said:
        return count(said, "request_received_ms") * NS_PER_MS
    took = said.get("total_time_ms")
    if not isinstance(took, int | float):
        raise UnusableRowError("rows without request_received_ms or total_time_ms")
    return count(event, "event_time_unix_ms") * NS_PER_MS - round(took * NS_PER_MS)
