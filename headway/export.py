"""Downloading an experiment with its evidence into a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from headway.client import Client
from scheduler_core.files import partial_path, sha256_of
from scheduler_core.types.errors import HeadwayError, InputError, Problem


class DamagedError(HeadwayError):
    """A downloaded file is not the one the server recorded."""


def export(client: Client, experiment_id: str, folder: Path) -> int:
    """Write ``experiment.json``, and ``run.json`` and every file of each run; the number of files.

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
    for place, run in enumerate(experiment["runs"], start=1):
        detail = client.get(f"/runs/{run['id']}")
        target = folder / f"{place:03d}-{run['arm']}-{run['repeat'] + 1}"
        target.mkdir()
        _write(target / "run.json", detail)
        files = detail["artifacts"]
        for row in files:
            _download(client, row, target / f"attempt-{row['attempt']}-{Path(row['name']).name}")
        count += 1 + len(files)
    return count


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")


def _download(client: Client, row: dict[str, Any], path: Path) -> None:
    with path.open("wb") as sink:
        client.download(row["url"], sink)
    if sha256_of(path) != row["sha256"]:
        raise DamagedError(f"{path.name}: the download does not match its recorded checksum; try again")
