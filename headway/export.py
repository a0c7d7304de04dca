"""Downloading an experiment with its evidence into a folder."""

import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.client import API, Client
from scheduler_core.files import partial_path, sha256_of, whole
from scheduler_core.types.errors import HeadwayError, InputError, Problem

EXPERIMENT_REPORTS = ("report.html", "verdict.md", "verdict.xml")
RUN_REPORTS = ("report.html",)


class DamagedError(HeadwayError):
    """A downloaded file is not the one the server recorded."""


def export(client: Client, experiment_id: str, folder: Path) -> int:
    """Write ``experiment.json``, ``run.json`` and every file of each run, and their offline reports; how many files.

    The folder appears whole or not at all.

    Raises:
        InputError: the folder exists already.
        DamagedError: a file does not have its recorded SHA-256.
    """
    if folder.exists():
        raise InputError([Problem(str(folder), "exists already; name a new folder with --to")])
    partial = partial_path(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        count = _fill(client, experiment_id, partial)
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return count


def _fill(client: Client, experiment_id: str, folder: Path) -> int:
    experiment = client.get(f"/experiments/{experiment_id}")
    _write(folder / "experiment.json", experiment)
    count = 1
    if experiment["verdict"] is not None:
        count += _reports(client, experiment_id, EXPERIMENT_REPORTS, folder)
    for place, run in enumerate(experiment["runs"], start=1):
        detail = client.get(f"/runs/{run['id']}")
        target = folder / f"{place:03d}-{run['arm']}{_at(run['load'])}-{run['repeat'] + 1}"
        target.mkdir()
        _write(target / "run.json", detail)
        files = detail["artifacts"]
        for row in files:
            _download(client, row, target / f"attempt-{row['attempt']}-{Path(row['name']).name}")
        count += 1 + len(files)
        if detail["summary"] is not None:
            count += _reports(client, run["id"], RUN_REPORTS, target)
    return count


def fetch(client: Client, identifier: str, name: str, target: Path) -> Path:
    """Download export ``name`` of an experiment or run, made by the server, to ``target``: whole or not at all."""
    with whole(target) as partial, partial.open("wb") as sink:
        client.download(_address(identifier, name), sink)
    return target


def text(client: Client, identifier: str, name: str) -> str:
    """Export ``name`` as text."""
    sink = BytesIO()
    client.download(_address(identifier, name), sink)
    return sink.getvalue().decode()


def _address(identifier: str, name: str) -> str:
    kind = "runs" if identifier.startswith("run_") else "experiments"
    return f"{API}/{kind}/{quote(identifier, safe='')}/exports/{quote(name, safe='')}"


def _reports(client: Client, identifier: str, names: tuple[str, ...], folder: Path) -> int:
    for name in names:
        fetch(client, identifier, name, folder / name)
    return len(names)


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")


def _download(client: Client, row: dict[str, Any], path: Path) -> None:
    with path.open("wb") as sink:
        client.download(row["url"], sink)
    if sha256_of(path) != row["sha256"]:
        raise DamagedError(f"{path.name}: the download does not match its recorded checksum; try again")


def _at(load: float | None) -> str:
    return "" if load is None else f"-at-{load:g}"
