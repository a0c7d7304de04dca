"""Verdicts on result files of other tools. Nothing is kept: the files are read, judged and forgotten."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.files.base import File

from controlplane.access import Person, require_person
from controlplane.workloads.selectors import copy_file
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.elsewhere import Judged, MeasuredSpec, judge_measured

MAX_BYTES = 64 * 1024 * 1024  # of all files together; they are read into memory


def judge_uploads(*, user: Person, files: Sequence[tuple[str, File]], asked: Mapping[str, Any]) -> Judged:  # type: ignore[type-arg]
    """Judge ``files``, each with its arm; ``asked`` holds the other fields of `MeasuredSpec`.

    Raises:
        InputError: a field, file or row is wrong; files are named as they were uploaded.
    """
    require_person(user)
    size = sum(file.size or 0 for _, file in files)
    if size > MAX_BYTES:
        raise InputError([Problem("file", f"the files have {size} bytes together; at most {MAX_BYTES} are read")])
    with tempfile.TemporaryDirectory(prefix="headway-measured-") as folder:
        arms: dict[str, list[str]] = {}
        titles: dict[str, str] = {}
        for place, (arm, file) in enumerate(files):
            path = copy_file(file, Path(folder) / f"{place:03d}")  # a name made here, whatever the client called it
            arms.setdefault(arm, []).append(path.name)
            titles[str(path)] = str(file.name)
        try:
            return judge_measured(parse(MeasuredSpec, {**asked, "arms": arms}), Path(folder))
        except InputError as error:
            raise InputError([_as_uploaded(problem, titles) for problem in error.problems]) from None


def _as_uploaded(problem: Problem, titles: Mapping[str, str]) -> Problem:
    """The problem with the person's own name of the file instead of ours."""
    for path, title in titles.items():
        if problem.where == path or problem.where.startswith(f"{path} "):
            return Problem(title + problem.where[len(path) :], problem.message.replace(path, title))
    return problem
