"""Uploaded logs and fitted clients, made into traces: what a log said of prompts is dropped with it.

Prompts become block identities under a salt that this installation derives from its secret key.
"""

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.crypto import salted_hmac

from scheduler_core.spec.drawing import Drawing
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import TRACE_FORMATS
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.clients import Span, draw_requests, read_clients
from scheduler_core.workload.logs.readers import TITLES, read_log
from scheduler_core.workload.logs.rows import ReadLog, in_order

CLIENTS = "servegen"
FORMATS = {**TITLES, CLIENTS: "ServeGen clients"}
"""What is converted at import, with a title for people."""
IMPORTED = (
    *((name, name) for name in TRACE_FORMATS),
    *((name, f"{title} ({name})") for name, title in FORMATS.items()),
)
"""Every format of an import, with its title."""

_CLIENT_FILE = re.compile(r"(?P<client>[\w.+-]{1,100})-(?:(?P<rates>trace)\.csv|dataset\.json(?:\.gz)?)")
_LINE = re.compile(r"line (\d+)")
_KEPT_OPTIONS = ("same_instant", "zero_output")
_MOST_REQUESTS = 2_000_000
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was received: where it lies, what its owner calls it, its SHA-256."""

    path: Path
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A trace made of uploads: its file, the options that read it, and where it came from.

    ``places`` are where its rows stand in what was uploaded, in their order; empty where they stand nowhere.
    """

    path: Path
    options: dict[str, Any]
    origin: dict[str, Any]
    places: tuple[str, ...] = ()

    def named(self, error: InputError) -> InputError:
        """``error`` of the trace's reader, with the places of the file that its owner knows."""
        problems = [replace(problem, where=self._place(problem.where)) for problem in error.problems]
        return InputError(problems)

    def _place(self, where: str) -> str:
        match = _LINE.fullmatch(where)
        row = int(match[1]) - 1 if match is not None else -1
        return self.places[row] if 0 <= row < len(self.places) else where


def convert(uploads: Sequence[Upload], kind: str, options: dict[str, Any], folder: Path) -> Converted:
    """The uploads, all of one ``kind`` of `FORMATS`, as a trace file in ``folder``.

    Raises:
        InputError: naming file and line, the option that belongs elsewhere, or the file that is missing.
    """
    for item in uploads:
        _refuse_large(item)
    found = _drawn(uploads, options, folder) if kind == CLIENTS else _logged(uploads, kind, options)
    path = folder / "converted"
    with path.open("w", encoding="utf-8") as sink:
        sink.writelines(f"{line}\n" for line in found.lines())
    kept = {name: options[name] for name in _KEPT_OPTIONS if name in options}
    origin = {
        "kind": kind,
        "title": FORMATS[kind],
        "files": [{"name": item.name, "sha256": item.sha256} for item in uploads],
        "left_out": [
            {"reason": reason, "rows": left.rows, "first": left.first} for reason, left in found.skipped.items()
        ],
    }
    places = tuple(f"{uploads[0].name} {request.place}" for request in found.requests if request.place)
    return Converted(path, {**found.reading, **kept}, origin, places)


def _logged(uploads: Sequence[Upload], kind: str, options: dict[str, Any]) -> ReadLog:
    _refuse(options, _KEPT_OPTIONS, f"does not belong to a log: what is in a {FORMATS[kind]} is known")
    if len(uploads) > 1:
        raise InputError([Problem("file", f"a {FORMATS[kind]} is one file, here are {len(uploads)}")])
    salt = salted_hmac("controlplane.workloads.logs", "prompt blocks", algorithm="sha256").digest()
    return read_log(uploads[0].path, kind, salt=salt, source=uploads[0].name)


def _drawn(uploads: Sequence[Upload], options: dict[str, Any], folder: Path) -> ReadLog:
    own = tuple(Drawing.model_fields)
    _refuse(options, (*own, *_KEPT_OPTIONS), f"does not belong to {FORMATS[CLIENTS]}")
    inside = folder / "clients"
    inside.mkdir()
    _place(uploads, inside)
    drawing = parse(Drawing, {name: options[name] for name in own if name in options})
    clients = read_clients(inside)
    span = Span(drawing.from_s, drawing.for_s, drawing.rate_scale)
    expected = sum(client.expected(span) for client in clients)
    if expected > _MOST_REQUESTS:
        message = f"about {expected:,.0f} requests would be drawn, at most {_MOST_REQUESTS:,}: draw fewer seconds"
        raise InputError([Problem("for_s", message)])
    names = ", ".join(client.name for client in clients)
    return in_order(draw_requests(clients, span, seed=drawing.draw_seed), {}, names)


def _place(uploads: Sequence[Upload], folder: Path) -> None:
    """Put files where nothing else lies. They are known by their names here: of that form, each part of a client once.

    That a client has rates is seen here, that it has lengths by its reader.
    """
    parts: dict[tuple[str, bool], str] = {}
    for item in uploads:
        match = _CLIENT_FILE.fullmatch(item.name)
        if match is None:
            message = f"{item.name!r} is not named NAME-trace.csv, NAME-dataset.json or NAME-dataset.json.gz"
            raise InputError([Problem("file", message)])
        part = match["client"], match["rates"] is not None
        if part in parts:
            raise InputError([Problem("file", f"{item.name} is a second file beside {parts[part]}: send one of them")])
        parts[part] = item.name
        item.path.rename(folder / item.name)
    alone = [name for (client, rates), name in parts.items() if not rates and (client, True) not in parts]
    if alone:
        raise InputError([Problem("file", f"{name} has no NAME-trace.csv beside it") for name in alone])


def _refuse_large(upload: Upload) -> None:
    """A packed file is under the size limit unpacked, too; one that is broken is left to its reader."""
    with upload.path.open("rb") as raw:
        if raw.read(len(_GZIP)) != _GZIP:
            return
    size = 0
    try:
        with gzip.open(upload.path) as stream:
            while size <= settings.TRACE_UPLOAD_MAX_BYTES and (chunk := stream.read(2**20)):
                size += len(chunk)
    except (OSError, EOFError, zlib.error):
        return
    if size > settings.TRACE_UPLOAD_MAX_BYTES:
        limit = settings.TRACE_UPLOAD_MAX_BYTES // 2**20
        message = f"{upload.name} is larger than {limit} MiB once it is unpacked (HEADWAY_TRACE_MAX_MB)"
        raise InputError([Problem("file", message)])


def _refuse(options: dict[str, Any], known: Sequence[str], reason: str) -> None:
    problems = [Problem(f"options.{name}", reason) for name in options if name not in known]
    if problems:
        raise InputError(problems)
