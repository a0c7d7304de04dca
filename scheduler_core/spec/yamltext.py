"""YAML (JSON is a part of it) as people write it, to plain data and back; the same rules for every way in."""

from typing import Any

import yaml

from scheduler_core.types.errors import InputError, Problem

MAX_DEPTH = 40  # deeper than any spec is nested
MAX_VALUES = 1_000_000  # counted as often as aliases repeat them; a spec has hundreds
_KINDS = {"int": "number", "float": "number", "bool": "truth value", "timestamp": "date"}


class _Loader(yaml.SafeLoader):
    """Safe YAML whose every refusal has a line, and in which a key is given once.

    Of two arms with one name, neither may vanish without a word.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in known:
                    problem = f"the key {key.value!r} is given twice in one place"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                known.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().construct_object(node, *args, **options)
        except (ValueError, LookupError, AttributeError):  # the 13th month, 5000 digits, !!bool maybe
            kind = node.tag.rpartition(":")[2]
            problem = f"{node.value[:40]!r} is not a {_KINDS.get(kind, kind)}; a text goes in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


class _NoAliasLoader(_Loader):
    """Safe YAML without aliases: a short text cannot unfold into a huge value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # missing in the stubs
            raise yaml.MarkedYAMLError(problem="aliases are not accepted here", problem_mark=mark)
        return super().compose_node(parent, index)


class _NoAliasDumper(yaml.SafeDumper):
    """What is written can be read back by `_NoAliasLoader`, even where one value stands in two places."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def load_yaml(text: str, *, aliases: bool = False) -> Any:
    """The plain data that ``text`` says. ``aliases`` is for a person's own files alone; see `_NoAliasLoader`.

    Raises:
        InputError: it cannot be read (with its line where that is known), or is too deep or too large.
    """
    try:
        data = yaml.load(text, Loader=_Loader if aliases else _NoAliasLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or error
        raise InputError([Problem(where, f"not readable as YAML: {reason}")]) from None
    except RecursionError:
        raise InputError([Problem("", "nested too deeply")]) from None
    if nested_too_deeply(data):
        raise InputError([Problem("", "nested too deeply")])
    if aliases and _unfolded(data) > MAX_VALUES:
        raise InputError([Problem("", f"its aliases unfold into more than {MAX_VALUES} values")])
    return data


def load_mapping(text: str, *, aliases: bool = False) -> dict[str, Any]:
    """As `load_yaml`, for a text whose outermost value must be keys with values, as every spec is."""
    data = load_yaml(text, aliases=aliases)
    if not isinstance(data, dict):
        got = "nothing" if data is None else "a list" if isinstance(data, list) else f"{data!r:.40}"
        raise InputError([Problem("", f"expected keys and values, such as name: first; got {got}")])
    return data


def dump_yaml(data: dict[str, Any]) -> str:
    """Plain data as YAML, in the order of its keys."""
    return yaml.dump(data, Dumper=_NoAliasDumper, sort_keys=False, allow_unicode=True, width=100)


def nested_too_deeply(data: object) -> bool:
    """Whether lists and mappings lie in one another more than `MAX_DEPTH` deep."""
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = list({id(item): item for value in level for item in _members(value)}.values())
        if not level:
            return False
    return True


def _unfolded(data: object) -> int:
    """How many values ``data`` has when each is counted in every place an alias puts it; at most `MAX_DEPTH` deep."""
    level, total = {id(data): (data, 1)}, 1
    while level:
        below: dict[int, tuple[object, int]] = {}
        for value, times in level.values():
            for item in _members(value):
                below[id(item)] = (item, below.get(id(item), (item, 0))[1] + times)
        level = below
        total += sum(times for _, times in level.values())
    return total


def _members(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
