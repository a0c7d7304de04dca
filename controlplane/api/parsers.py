"""Request bodies: JSON and YAML of bounded size and depth, and uploads."""

from typing import Any

import yaml
from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser

MAX_DEPTH = 40


def check_depth(value: object, depth: int = 0) -> None:
    """`ParseError` when data is nested deeper than any spec is."""
    if depth > MAX_DEPTH:
        raise ParseError(f"The input is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(value, dict):
        for item in value.values():
            check_depth(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_depth(item, depth + 1)


class BoundedJSONParser(JSONParser):
    """Strict JSON (no NaN, no Infinity) of bounded depth; the size was capped when the body was read."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        try:
            data = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The input is nested too deeply.") from None
        check_depth(data)
        return data


class _NoAliasLoader(yaml.SafeLoader):
    """Safe YAML without aliases: a short text cannot unfold into a huge value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise ParseError("YAML aliases are not accepted here.")
        return super().compose_node(parent, index)


class YAMLParser(BaseParser):
    """The file that the command line submits, sent as it is."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        text = stream.read(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
        try:
            data = yaml.load(text.decode("utf-8"), Loader=_NoAliasLoader)
        except (UnicodeDecodeError, RecursionError) as error:
            raise ParseError(f"Not readable as YAML: {type(error).__name__}.") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            raise ParseError(f"Not readable as YAML: {where}{getattr(error, 'problem', 'damaged')}.") from None
        check_depth(data)
        return data
