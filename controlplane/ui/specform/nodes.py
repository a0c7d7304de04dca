"""The tree that the templates render. ``name`` is the form field's name, ``path`` where a problem would point."""

from dataclasses import dataclass, field
from typing import ClassVar

from controlplane.ui.specform.shapes import Choices

# Last part of a select's name: between variants, and, where saved specs are offered too, between those inside.
CHOICE = "__choice"
VARIANT = "__variant"
SWITCH = "__on"
KEY = "__key"
PRESENT = "__items"


@dataclass
class Node:
    """Anything in a form: where it is, what it is called, what is wrong with it."""

    kind: ClassVar[str] = ""
    name: str
    path: str
    label: str = ""
    help: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def ident(self) -> str:
        """Id of the HTML element."""
        return "f-" + (self.name.replace(".", "-").replace("__", "") or "top")


@dataclass
class Leaf(Node):
    """One input. ``control``: text, number, numbers, select. ``default`` is what an empty input stands for."""

    kind: ClassVar[str] = "leaf"
    control: str = "text"
    value: str = ""
    unit: str = ""
    default: str = ""
    choices: Choices = ()
    required: bool = False
    refresh: bool = False


@dataclass
class Group(Node):
    """Fields that belong together; ``more`` are shown on demand, and all of them when it is ``folded``."""

    kind: ClassVar[str] = "group"
    children: list[Node] = field(default_factory=list)
    more: list[Node] = field(default_factory=list)
    more_open: bool = False
    folded: bool = False

    @property
    def labels(self) -> str:
        """What is inside, for the line that unfolds it."""
        return _listed([*self.children, *self.more])

    @property
    def more_labels(self) -> str:
        """What is shown on demand."""
        return _listed(self.more)


@dataclass
class Variant:
    """One answer of a choice, with the fields it brings."""

    value: str
    label: str
    help: str
    nodes: list[Node]


@dataclass
class Choice(Node):
    """Exactly one of several variants."""

    kind: ClassVar[str] = "choice"
    question: str = "Kind"
    selected: str = ""
    variants: list[Variant] = field(default_factory=list)
    suffix: str = CHOICE

    @property
    def choice_name(self) -> str:
        """Name of the select that holds the choice."""
        return f"{self.name}.{self.suffix}".lstrip(".")


@dataclass
class Row:
    """One item: its key where items are named, and its node."""

    index: int
    key: str
    node: Node


@dataclass
class Items(Node):
    """Any number of rows; ``keyed`` rows have a name (or one of ``key_choices``)."""

    kind: ClassVar[str] = "items"
    rows: list[Row] = field(default_factory=list)
    keyed: bool = False
    key_label: str = "Name"
    key_choices: Choices = ()
    noun: str = "row"
    compact: bool = False


def _listed(nodes: list[Node]) -> str:
    names = [node.label or (node.question if isinstance(node, Choice) else "") for node in nodes]
    return ", ".join(name if name[:2].isupper() else name[:1].lower() + name[1:] for name in names)
