"""How the OpenAPI document is made: specs come from their one definition, errors are the same everywhere."""

from typing import Any

from drf_spectacular.contrib.pydantic import PydanticExtension
from drf_spectacular.plumbing import ResolvedComponent
from pydantic.json_schema import model_json_schema

REF = "#/components/schemas/{model}"

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A refusal. `code` is stable and for programs; `detail` and `problems` are for people.",
    "required": ["type", "title", "status", "code", "detail", "problems", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "example": "invalid_input"},
        "detail": {"type": "string"},
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["where", "message"],
                "properties": {"where": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
}
IDEMPOTENCY_PARAMETER: dict[str, Any] = {
    "in": "header",
    "name": "Idempotency-Key",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    "description": "Any fresh text; a retry with the same key and body gets the first answer again, for 24 hours.",
}
_SAFE = ("get", "head", "options")
_COLUMN_LIMITS = {2**31 - 1, -(2**31), 2**63 - 1, -(2**63)}


class SpecExtension(PydanticExtension):  # type: ignore[no-untyped-call]
    """Specs as they are *written*: with the shorthands that validation accepts."""

    target_class = "scheduler_core.spec.base.Spec"
    match_subclasses = True
    priority = 1

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = model_json_schema(self.target, ref_template=REF, mode="validation")
        for name, part in schema.pop("$defs", {}).items():
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, object=name, schema=part
            )
            auto_schema.registry.register_on_missing(component)
        return schema


def describe_errors(result: dict[str, Any], generator: Any, request: Any, public: Any) -> dict[str, Any]:
    """Post-processing hook: the problem document, the errors each operation can give, and the retry header."""
    result["components"]["schemas"]["Problem"] = PROBLEM_SCHEMA
    body = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    result["components"]["responses"] = {"Problem": {"description": "Refused; see `code`.", "content": body}}
    for methods in result["paths"].values():
        for verb, operation in methods.items():
            operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
            if verb not in _SAFE:
                operation.setdefault("parameters", []).append(IDEMPOTENCY_PARAMETER)
    return result


def drop_column_limits(result: dict[str, Any], generator: Any, request: Any, public: Any) -> dict[str, Any]:
    """Take out how large an integer the database's columns hold: that is the installation's, not the API's."""
    _drop_column_limits(result)
    return result


def _drop_column_limits(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _drop_column_limits(item)
    elif isinstance(node, dict):
        if node.get("type") == "integer":
            for bound in ("minimum", "maximum"):
                if node.get(bound) in _COLUMN_LIMITS:
                    del node[bound]
            if node.get("format") == "int64":
                del node["format"]
        for item in node.values():
            _drop_column_limits(item)
