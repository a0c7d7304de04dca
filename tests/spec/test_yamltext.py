"""YAML as every way in reads and writes it."""

import json
from typing import Any

import pytest

from scheduler_core.spec.yamltext import MAX_DEPTH, dump_yaml, load_mapping, load_yaml
from scheduler_core.types.errors import InputError

POLICY = {"policy": "vllm_v1", "batch": {"token_budget": 2048}, "cache": {"blocks": 64}}


def test_yaml_and_json_say_one_thing() -> None:
    yaml = "policy: vllm_v1\nbatch: {token_budget: 2048}\ncache: {blocks: 64}\n"
    assert load_mapping(yaml) == load_mapping(json.dumps(POLICY)) == load_mapping(dump_yaml(POLICY)) == POLICY


def test_keys_keep_their_order_and_letters_their_looks() -> None:
    assert dump_yaml({"b": 1, "a": "größer"}) == "b: 1\na: größer\n"


def test_a_value_in_two_places_is_written_out_twice() -> None:
    shared = {"size": 1}
    assert load_mapping(dump_yaml({"a": shared, "b": shared})) == {"a": shared, "b": shared}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1", "line 1: not readable as YAML"),
        ("a: [1,\nb: 2}", "line 2: not readable as YAML"),
        ("- 1\n- 2\n", "expected keys and values, such as name: first; got a list"),
        ("", "expected keys and values, such as name: first; got nothing"),
        ("just words", "expected keys and values, such as name: first; got 'just words'"),
        ("policy: !!python/object/apply:os.system ['true']", "line 1: not readable as YAML: could not determine a"),
        ("a: &a [1, 1]\nb: [*a, *a]\n", "line 2: not readable as YAML: aliases are not accepted here"),
        ("a: &a [*a]", "line 1: not readable as YAML: aliases are not accepted here"),
        ("a: \x00", "not readable as YAML"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\nname: 2024-13-45", "line 2: not readable as YAML: '2024-13-45' is not a date; a text goes in quotes"),
        ("a:\n- seed: 1" + "0" * 6000, f"line 2: not readable as YAML: {'1' + '0' * 39!r} is not a number"),
        ("a: 0x_", "line 1: not readable as YAML: '0x_' is not a number"),
        ("a: !!bool maybe", "line 1: not readable as YAML: 'maybe' is not a truth value"),
        ("a: !!timestamp soon", "line 1: not readable as YAML: 'soon' is not a date"),
        ("a: 1\nb: {c: 1, d: 2,\n  c: 3}", "line 3: not readable as YAML: the key 'c' is given twice in one place"),
    ],
)
def test_text_that_says_nothing_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        load_mapping(text)
    assert str(caught.value).startswith(problem)


def test_a_person_s_own_file_may_use_aliases() -> None:
    assert load_mapping("a: &a {x: 1}\nb: *a\n", aliases=True) == {"a": {"x": 1}, "b": {"x": 1}}


def test_a_key_given_twice_is_refused_there_too() -> None:
    with pytest.raises(InputError, match="line 2: not readable as YAML: the key 'a' is given twice"):
        load_mapping("a: 1\na: 2\n", aliases=True)
    assert load_mapping("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", aliases=True)["b"] == {"x": 2}


def test_an_endless_value_is_refused_where_aliases_are_accepted() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        load_yaml("a: &a [*a]", aliases=True)


def test_aliases_may_not_unfold_into_a_huge_value() -> None:
    """Nine aliases of the line before on each of nine lines: 9^9 values from some 300 characters."""
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    with pytest.raises(InputError, match="its aliases unfold into more than 1000000 values"):
        load_mapping("\n".join(lines), aliases=True)
    assert load_mapping("\n".join(lines[:4]), aliases=True)["a1"] == [[1]] * 9


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    value: Any = load_yaml(nested(MAX_DEPTH))
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []
    with pytest.raises(InputError, match="nested too deeply"):
        load_yaml(nested(MAX_DEPTH + 2))
