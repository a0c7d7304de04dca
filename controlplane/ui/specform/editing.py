"""Adding and removing rows of a posted form; the page is drawn again from the result, with or without scripts."""

from collections.abc import Callable

from django.http import QueryDict

from controlplane.ui.specform.nodes import KEY
from controlplane.ui.specform.reading import row_indices

ADD, REMOVE = "add:", "remove:"


def edit_rows(post: QueryDict, action: str, suggest: Callable[[str, list[str]], str]) -> QueryDict:
    """A copy of ``post`` after ``add:arms`` or ``remove:arms.1``; ``suggest(path, names in use)`` names a new row."""
    edited = post.copy()
    if action.startswith(ADD):
        path = action.removeprefix(ADD)
        indices = row_indices(edited, path)
        used = [edited.get(f"{path}.{index}.{KEY}", "") for index in indices]
        edited[f"{path}.{max(indices, default=-1) + 1}.{KEY}"] = suggest(path, used)
    elif action.startswith(REMOVE):
        prefix = action.removeprefix(REMOVE) + "."
        for key in [key for key in edited if key.startswith(prefix)]:
            del edited[key]
    return edited


def numbered(noun: str, used: list[str]) -> str:
    """The first of ``noun-1``, ``noun-2`` ... not in use."""
    return next(name for number in range(1, len(used) + 2) if (name := f"{noun}-{number}") not in used)
