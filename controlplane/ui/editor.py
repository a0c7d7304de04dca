"""Editing a spec as a form or as YAML: two views of one object, validated by the one definition.

A page posts everything; the button that was pressed says what is wanted: ``save``, ``preview``, ``to_yaml``,
``to_form``, ``refresh``, ``add:PATH`` or ``remove:PATH.N``. Only the first two act; the others draw the page again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from django.contrib import messages
from django.http import HttpRequest
from pydantic import BaseModel

from controlplane.ui.specform.building import Setting, build
from controlplane.ui.specform.editing import edit_rows, numbered
from controlplane.ui.specform.nodes import Node
from controlplane.ui.specform.reading import read
from scheduler_core.spec.goal import MetricName
from scheduler_core.spec.yamltext import dump_yaml, load_mapping
from scheduler_core.types.errors import InputError, Problem

Check = Callable[[dict[str, Any]], object]


@dataclass
class Editor:
    """The state of one editing page."""

    model: type[BaseModel]
    setting: Setting
    data: dict[str, Any] = field(default_factory=dict)
    mode: str = "form"
    text: str = ""
    problems: list[Problem] = field(default_factory=list)
    action: str = ""

    @property
    def tree(self) -> Node:
        """The form, with each problem at its field."""
        return build(self.model, self.data, self.problems, self.setting)

    @property
    def yaml(self) -> str:
        """The object as YAML: as typed while that is being edited."""
        return self.text if self.mode == "yaml" else dump_yaml(self.data) if self.data else ""

    @property
    def acts(self) -> bool:
        """Whether the pressed button wants more than another view, and the input could be read."""
        return self.action in ("save", "preview") and not self.problems

    def fail(self, error: InputError, *, prefix: str = "") -> None:
        """Show the problems of a refused input; those under ``prefix`` are at fields of this form."""
        dot = f"{prefix}." if prefix else ""
        self.problems += [Problem(item.where.removeprefix(dot), item.message) for item in error.problems]


def posted(request: HttpRequest, model: type[BaseModel], setting: Setting, check: Check) -> Editor:
    """The state after a POST. ``check`` raises `InputError` for a bad object; it guards the way from YAML to form."""
    editor = Editor(model, setting, action=request.POST.get("do", "save"))
    editor.mode = "yaml" if request.POST.get("mode") == "yaml" else "form"
    try:
        if editor.mode == "yaml":
            editor.text = request.POST.get("yaml", "").replace("\r\n", "\n")
            editor.data = load_mapping(editor.text)
        else:
            editor.data = read(model, edit_rows(request.POST, editor.action, _suggest), setting)
    except InputError as error:
        editor.fail(error)
        return editor
    if editor.action == "to_yaml" and editor.mode == "form":
        editor.mode, editor.text = "yaml", editor.yaml
    elif editor.action == "to_form" and editor.mode == "yaml":
        editor.problems = _without_place(check, editor.data)
        editor.mode = "yaml" if editor.problems else "form"
    return editor


def refuse(request: HttpRequest, editor: Editor, error: Exception) -> None:
    """Show why a service refused: at the fields where it says so, else as a message."""
    if isinstance(error, InputError):
        editor.fail(error)
    else:
        messages.error(request, str(error))


def without_empty(value: Any) -> Any:
    """A value without what is not set, for reading."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if item != {}}
    return value


def _without_place(check: Check, data: dict[str, Any]) -> list[Problem]:
    """What a form could not show and would drop: unknown keys, and parts that are not what they should be."""
    try:
        check(data)
    except InputError as error:
        lost = ("unknown key", "Input should be a valid dictionary")
        return [item for item in error.problems if item.message.startswith(lost)]
    return []


def _suggest(path: str, used: list[str]) -> str:
    last = path.rpartition(".")[2]
    if last == "guard":
        return next((name for name in get_args(MetricName) if name not in used), "")
    if last == "arms" and not any(used):
        return "baseline"
    return numbered(last.removesuffix("s"), used)
