"""Experiment files: reading them, and turning a trace on this machine into one on the server."""

import json
from pathlib import Path
from typing import Any

from headway.client import Client
from scheduler_core.spec.yamltext import load_mapping
from scheduler_core.types.errors import InputError, Problem

_TRACE_FIELDS = ("format", "columns", "time_unit", "block_size", "same_instant", "zero_output")


def read(path: Path) -> dict[str, Any]:
    """The mapping of a YAML or JSON file; `InputError` names the line that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError([Problem(str(path), f"cannot be read: {reason}")]) from None
    try:
        return load_mapping(text, aliases=True)
    except InputError as error:
        places = [f"{path}, {item.where}" if item.where else str(path) for item in error.problems]
        raise InputError(
            [Problem(place, item.message) for place, item in zip(places, error.problems, strict=True)]
        ) from None


def trace_of(data: dict[str, Any]) -> dict[str, Any] | None:
    """The ``workload.trace`` mapping of an experiment that names a local file, or None."""
    workload = data.get("workload")
    trace = workload.get("trace") if isinstance(workload, dict) else None
    return trace if isinstance(trace, dict) and isinstance(trace.get("file"), str) else None


def upload_trace(client: Client, data: dict[str, Any], base: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """``data`` with a local trace file replaced by the dataset it was imported as, and that dataset (or None).

    Relative paths are taken from ``base``, the folder of the experiment file.
    """
    trace = trace_of(data)
    if trace is None:
        return data, None
    path = (base / Path(trace["file"]).expanduser()).resolve()
    if not path.is_file():
        raise InputError([Problem("workload.trace.file", f"there is no file {path}")])
    fields = {name: trace[name] for name in _TRACE_FIELDS if trace.get(name) is not None}
    text = {name: json.dumps(value) if name == "columns" else str(value) for name, value in fields.items()}
    dataset = client.upload("/datasets", path, {"name": path.name[:100], **text})
    kept = {name: value for name, value in trace.items() if name not in ("file", *_TRACE_FIELDS)}
    workload = {**data["workload"], "trace": {"dataset": dataset["id"], **kept}}
    return {**data, "workload": workload}, dataset
