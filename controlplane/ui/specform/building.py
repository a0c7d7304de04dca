"""From a model class, data and problems to the tree of nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from controlplane.ui.specform.nodes import CHOICE, SWITCH, VARIANT, Choice, Group, Items, Leaf, Node, Row, Variant
from controlplane.ui.specform.shapes import Choices, Shape, label_of, layout_of, shape_of, summary_of
from scheduler_core.policies.manifests import Manifest
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.types.errors import Problem
from scheduler_core.verdict.titles import metric_title

Data = Mapping[str, Any]


@dataclass
class Setting:
    """What a form knows beyond its models: choices from the database, saved specs, and what each preset takes.

    ``choices`` by (model, field) turn a text field into a select; ``saved`` by model offers saved specs of it; a
    change of a ``refreshing`` field draws the form again.
    """

    choices: dict[tuple[type[BaseModel], str], Choices] = field(default_factory=dict)
    saved: dict[type[BaseModel], Choices] = field(default_factory=dict)
    refreshing: frozenset[tuple[type[BaseModel], str]] = frozenset()
    hidden: frozenset[tuple[type[BaseModel], str]] = frozenset()
    presets: Mapping[str, Manifest] = field(default_factory=dict)


def build(model: type[BaseModel], data: Data, problems: Sequence[Problem], setting: Setting) -> Node:
    """The tree of a whole form, each problem at its field, or at the nearest group above it."""
    tree = _Builder(setting).model(model, "", "", data)
    for problem in problems:
        _nearest(tree, problem.where).errors.append(problem.message)
    return tree


def node_paths(node: Node) -> list[Node]:
    """A node and all below it."""
    found = [node]
    for child in _children(node):
        found += node_paths(child)
    return found


def _children(node: Node) -> list[Node]:
    if isinstance(node, Group):
        return [*node.children, *node.more]
    if isinstance(node, Choice):
        return [child for variant in node.variants if variant.value == node.selected for child in variant.nodes]
    return [row.node for row in node.rows] if isinstance(node, Items) else []


def _nearest(tree: Node, where: str) -> Node:
    """The node whose path is the longest beginning of ``where``."""
    best = tree
    for node in node_paths(tree):
        inside = node.path == "" or where == node.path or where.startswith(node.path + ".")
        if inside and (len(node.path) > len(best.path) or (isinstance(node, Leaf) and node.path == where)):
            best = node
    for node in node_paths(tree):
        if isinstance(node, Group) and best in node_paths(node):
            node.folded = False
            node.more_open = node.more_open or any(best in node_paths(child) for child in node.more)
    return best


class _Builder:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._preset: Manifest | None = None
        self._section = ""

    def model(self, model: type[BaseModel], name: str, path: str, data: Data) -> Node:
        """A model as a group or, where saved specs of it are offered, as a choice between saved and written here."""
        saved = self._setting.saved.get(model)
        if saved is None:
            return self._plain(model, name, path, data)
        uses = "use" in data or (not data and bool(saved))
        leaf = Leaf(_join(name, "use"), _join(path, "use"), "Version", control="select", choices=saved, required=True)
        leaf.value = str(data.get("use", ""))
        inline = self._plain(model, name, path, {} if "use" in data else data)
        variants = [
            Variant("use", "A saved version", "", [leaf]),
            Variant("inline", "Written here", "", [inline]),
        ]
        return Choice(name, path, question="From", selected="use" if uses else "inline", variants=variants)

    def _plain(self, model: type[BaseModel], name: str, path: str, data: Data) -> Node:
        layout = layout_of(model)
        if model is PolicySpec:
            self._preset = self._setting.presets.get(str(data.get("policy") or ""))

        def node(field_name: str) -> Node:
            return self.field(model, field_name, name, path, data)

        in_variants = {item for names in layout.variants.values() for item in names}
        rest = [item for item in model.model_fields if item not in in_variants and item not in layout.hidden]
        rest = [item for item in rest if self._applies(model, item, data)]
        children = [built for item in rest if item not in layout.more if not _is_empty(built := node(item))]
        more = [node(item) for item in rest if item in layout.more]
        if layout.variants:
            choice = self._choice(model, name, path, data, layout.variants, node)
            if not children and not more:
                return choice
            children.insert(1 if "name" in rest else 0, choice)
        used = any(data.get(item) not in (None, {}) for item in layout.more)
        group = Group(name, path, children=children, more=more, more_open=used)
        group.help = summary_of(model)
        return group

    def _applies(self, model: type[BaseModel], field_name: str, data: Data) -> bool:
        """Whether the form and the preset take this setting; one given anyway stays to be seen with its error."""
        if (model, field_name) in self._setting.hidden:
            return False
        if self._preset is None or model is PolicySpec or model not in _SECTION_MODELS:
            return True
        return f"{self._section}.{field_name}" in self._preset.settable or data.get(field_name) is not None

    def _choice(
        self,
        model: type[BaseModel],
        name: str,
        path: str,
        data: Data,
        variants: dict[str, tuple[str, ...]],
        node: Callable[[str], Node],
    ) -> Choice:
        given = [key for key in variants if data.get(key) is not None]
        built = []
        for key, names in variants.items():
            inner = shape_of(model.model_fields[key]).model
            help_text = model.model_fields[key].description or (summary_of(inner) if inner else "")
            built.append(Variant(key, label_of(key)[0], help_text, [node(item) for item in names]))
        for variant in built:
            for inner_node in variant.nodes[:1]:  # what the variant has said already
                inner_node.help = "" if inner_node.help == variant.help else inner_node.help
                if isinstance(inner_node, Group) and len(variant.nodes) == 1:
                    inner_node.label = inner_node.help = ""
        chosen = given[0] if given else next(iter(variants))
        suffix = VARIANT if model in self._setting.saved else CHOICE
        return Choice(name, path, selected=chosen, variants=built, suffix=suffix)

    def field(self, model: type[BaseModel], field_name: str, name: str, path: str, data: Data) -> Node:
        """One field of a model."""
        info = model.model_fields[field_name]
        shape = shape_of(info)
        label, unit = label_of(field_name, model)
        here, where = _join(name, field_name), _join(path, field_name)
        value = data[field_name] if data.get(field_name) is not None else _default_data(info, shape)
        if shape.kind == "model" and shape.model is not None:
            if model is PolicySpec:
                self._section = field_name
            node = self.model(shape.model, here, where, value if isinstance(value, Mapping) else {})
            node.label, node.help = label, info.description or node.help
            if model is PolicySpec and path and isinstance(node, Group):
                node.folded = not value
            in_variants = any(field_name in names for names in layout_of(model).variants.values())
            return self._switch(node, on=value is not None) if shape.optional and not in_variants else node
        if shape.kind in ("items", "pairs"):
            return self._items(shape, here, where, label, info, value)
        leaf = self._leaf(model, field_name, shape, info, value)
        leaf.name, leaf.path, leaf.label, leaf.unit = here, where, label, unit or ("%" if shape.percent else "")
        return leaf

    @staticmethod
    def _switch(node: Node, *, on: bool) -> Choice:
        """A part that may be absent as a whole, as a choice between none and its fields."""
        variants = [Variant("", "none", node.help, []), Variant("on", "yes", node.help, [node])]
        switch = Choice(node.name, node.path, question=node.label, selected="on" if on else "", variants=variants)
        node.label, switch.suffix = "", SWITCH
        return switch

    def _leaf(self, model: type[BaseModel], field_name: str, shape: Shape, info: FieldInfo, value: Any) -> Leaf:
        leaf = Leaf("", "", help=info.description or "", control=shape.kind, required=info.is_required())
        leaf.refresh = (model, field_name) in self._setting.refreshing
        leaf.default = "" if info.is_required() else _text(info.get_default(call_default_factory=False), shape)
        if self._preset is not None and model in _SECTION_MODELS:
            leaf.help = self._preset.settable.get(f"{self._section}.{field_name}", leaf.help)
            default = getattr(getattr(self._preset.defaults, self._section), field_name)
            leaf.default = _text(default, shape) or leaf.default
        leaf.value = _text(value, shape)
        choices = self._setting.choices.get((model, field_name))
        if choices is not None:
            leaf.control, leaf.choices = "select", choices
        elif shape.kind == "select":
            leaf.choices = tuple((item, _choice_label(field_name, item)) for item in shape.choices)
        elif shape.kind == "flag":
            leaf.control, leaf.choices = "select", (("true", "yes"), ("false", "no"))
        leaf.default = dict(leaf.choices).get(leaf.default, leaf.default)
        if leaf.control == "select" and leaf.value and leaf.value not in dict(leaf.choices):
            leaf.choices += ((leaf.value, f"{leaf.value} (not listed)"),)
        return leaf

    def _items(self, shape: Shape, name: str, path: str, label: str, info: FieldInfo, value: Any) -> Items:
        node = Items(name, path, label, info.description or "", keyed=shape.keyed or shape.kind == "pairs")
        node.noun = label.lower().removesuffix("s")
        if shape.kind == "pairs":
            node.compact, node.key_label = True, "Metric"
            node.key_choices = tuple((item, metric_title(item)) for item in shape.choices)
        elif shape.model is not None:
            node.help = node.help or summary_of(shape.model)
        pairs = list(value.items()) if isinstance(value, Mapping) else [(str(i), v) for i, v in enumerate(value or ())]
        for index, (key, item) in enumerate(pairs):
            inside, where = f"{name}.{index}", _join(path, str(key))
            if shape.model is not None:
                row = self.model(shape.model, inside, where, item if isinstance(item, Mapping) else {})
                row.label = row.help = ""
            else:
                row = Leaf(f"{inside}.value", where, "Allowed change", unit="%" if shape.percent else "")
                row.value, row.required = _text(item, shape), True
            node.rows.append(Row(index, str(key), row))
        return node


_SECTION_MODELS = tuple(shape_of(PolicySpec.model_fields[name]).model for name in SECTIONS)


def _default_data(info: FieldInfo, shape: Shape) -> Any:
    """What a missing model or collection starts from; a missing input stays empty, its default is its placeholder."""
    if shape.kind not in ("model", "items", "pairs"):
        return None
    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined or default is None:
        return None
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(default, Mapping):
        return {
            key: item.model_dump(mode="json", exclude_none=True) if isinstance(item, BaseModel) else item
            for key, item in default.items()
        }
    return default


def _is_empty(node: Node) -> bool:
    """Nothing to fill in: a group without fields, or a choice of one that has a default."""
    if isinstance(node, Leaf):
        return node.control == "select" and len(node.choices) == 1 and bool(node.default) and not node.errors
    return isinstance(node, Group) and not node.children and not node.more


def _text(value: Any, shape: Shape) -> str:
    """A value as it is typed: fractions as percentages, lists of numbers with commas."""
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if shape.percent and isinstance(value, int | float):
        return f"{value * 100:+.6g}%" if shape.kind == "pairs" else f"{value * 100:.6g}%"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item, Shape("number")) for item in value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _choice_label(field_name: str, value: str) -> str:
    return metric_title(value) if field_name == "primary" else value.replace("_", " ")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
