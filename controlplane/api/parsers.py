"""Request bodies: JSON and YAML of bounded size and depth, and uploads."""

import json
from typing import Any, NoReturn

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

from scheduler_core.spec.yamltext import MAX_DEPTH, load_yaml, nested_too_deeply
from scheduler_core.types.errors import InputError


class BoundedJSONParser(JSONParser):
    """Strict JSON (no NaN, no Infinity, no key twice) of bounded depth; the size was capped when it was read."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        try:
            data = json.loads(stream.read().decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_once)
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from None
        except RecursionError:
            raise ParseError("The input is nested too deeply.") from None
        if nested_too_deeply(data):
            raise ParseError(f"The input is nested more than {MAX_DEPTH} levels deep.")
        return data


class YAMLParser(BaseParser):
    """The file that the command line submits, sent as it is."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        text = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        try:
            return load_yaml(text.decode("utf-8"))
        except UnicodeDecodeError:
            raise ParseError("The input is not UTF-8 text.") from None
        except InputError as error:
            text = str(error)
            raise ParseError(f"{text[0].upper()}{text[1:]}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"out of range float values are not JSON compliant: {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two members with one name the first would vanish without a word."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice in one object")
        found[key] = value
    return found
