"""From a posted form to plain data, ready for `scheduler_core.spec.parse`.

Nothing is checked here but that row names are given once: values go on as typed, and the one validation judges them.
"""

import re
from typing import Any

from django.http import QueryDict
from pydantic import BaseModel

from controlplane.ui.specform.building import Setting
from controlplane.ui.specform.nodes import CHOICE, KEY, PRESENT, SWITCH, VARIANT
from controlplane.ui.specform.shapes import Shape, layout_of, shape_of
from scheduler_core.types.errors import InputError, Problem

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
MAX_ROWS = 200
MOST_DIGITS = 300  # of a number; what is longer stays text, which no field of numbers takes


def read(model: type[BaseModel], post: QueryDict, setting: Setting, name: str = "") -> dict[str, Any]:
    """Data of a posted form of ``model``; `InputError` when two rows share a name."""
    if model in setting.saved and post.get(_join(name, CHOICE)) == "use":
        return {"use": post.get(f"{name}.use", "")}
    layout = layout_of(model)
    skipped = set(layout.hidden)
    required: str | None = None
    in_variants = {item for names in layout.variants.values() for item in names}
    if layout.variants:
        chosen = post.get(_join(name, VARIANT if model in setting.saved else CHOICE), "")
        chosen = chosen if chosen in layout.variants else next(iter(layout.variants))
        skipped |= {item for key, names in layout.variants.items() if key != chosen for item in names}
        required = chosen
    data: dict[str, Any] = {}
    for field_name, info in model.model_fields.items():
        if field_name in skipped:
            continue
        shape, here = shape_of(info), _join(name, field_name)
        if shape.optional and field_name not in in_variants:
            value = _switched(shape, post, setting, here)
        else:
            value = _value(shape, post, setting, here)
            if shape.kind in ("items", "pairs") and info.default is None:
                value = value or None  # a collection that may be absent is absent without rows
        if value is None and field_name == required and shape.kind == "model":
            value = {}
        if value is not None:
            data[field_name] = value
    return data


def _switched(shape: Shape, post: QueryDict, setting: Setting, name: str) -> dict[str, Any] | None:
    """A part that may be absent as a whole: present only when it was switched on."""
    assert shape.model is not None  # only models are optional in this sense
    return read(shape.model, post, setting, name) if post.get(f"{name}.{SWITCH}") == "on" else None


def _value(shape: Shape, post: QueryDict, setting: Setting, name: str) -> Any:
    """A field's data, or None when nothing was entered."""
    if shape.kind == "model" and shape.model is not None:
        return read(shape.model, post, setting, name) or None
    if shape.kind in ("items", "pairs"):
        return _rows(shape, post, setting, name) if f"{name}.{PRESENT}" in post else None
    text = post.get(name, "").replace("\r\n", "\n").strip()
    if not text:
        return None
    if shape.kind == "numbers":
        return [_scalar(part) for part in re.split(r"[\s,;]+", text) if part]
    if shape.kind == "names":
        return [name for part in re.split(r"[,;\n]+", text) if (name := part.strip())]
    if shape.kind == "flag":
        return {"true": True, "false": False}.get(text, text)
    return _scalar(text) if shape.kind == "number" else text


def _rows(shape: Shape, post: QueryDict, setting: Setting, name: str) -> dict[str, Any] | list[Any]:
    indices = row_indices(post, name)
    if not shape.keyed and shape.kind == "items":
        return [_row(shape, post, setting, f"{name}.{index}") for index in indices]
    rows: dict[str, Any] = {}
    for index in indices:
        key = post.get(f"{name}.{index}.{KEY}", "").strip()
        item = _row(shape, post, setting, f"{name}.{index}")
        if not key and not item:
            continue
        if key in rows:
            raise InputError([Problem(f"{name}.{key}", "this name is used twice; names must differ")])
        rows[key] = item
    return rows


def _row(shape: Shape, post: QueryDict, setting: Setting, name: str) -> Any:
    if shape.model is not None:
        return read(shape.model, post, setting, name)
    return _scalar(post.get(f"{name}.value", "").strip())


def row_indices(post: QueryDict, name: str) -> list[int]:
    """Indices of the rows of a collection, in order of appearance by number."""
    pattern = re.compile(rf"{re.escape(name)}\.(\d{{1,4}})\.")
    return sorted({int(match[1]) for key in post if (match := pattern.match(key))})[:MAX_ROWS]


def _scalar(text: str) -> Any:
    """A number where the text is one, else the text itself (such as "10%", or something wrong)."""
    if len(text) > MOST_DIGITS or not _NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
