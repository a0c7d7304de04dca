"""Building blocks of input and output forms."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.reverse import reverse

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.verdict.prediction import PredictionResult
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.search import SearchResult

FieldT = TypeVar("FieldT", bound=serializers.Field[Any, Any, Any, Any])


class ChoiceField(serializers.ChoiceField):
    """One of some words; a refusal names them."""

    default_error_messages = {"invalid_choice": "'{input}' is none of {choices}"}

    def fail(self, key: str, **values: Any) -> NoReturn:
        super().fail(key, choices=", ".join(map(str, self.choices)), **values)


class MultipleChoiceField(ChoiceField, serializers.MultipleChoiceField):
    """Some of some words; a refusal names them."""


class Input(serializers.Serializer[Any]):
    """Input of one action. Unknown keys are errors: a misspelt option must not be silently ignored.

    ``read_elsewhere`` are keys that are known, but not for this form to read.
    """

    read_elsewhere: tuple[str, ...] = ()

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) or hasattr(data, "keys"):
            unknown = [str(key) for key in data if key not in self.fields and key not in self.read_elsewhere]
            if unknown:
                known = ", ".join((*self.fields, *self.read_elsewhere))
                raise serializers.ValidationError({key: [f"unknown key; known: {known}"] for key in unknown})
        return super().to_internal_value(data)


class ListFilter(Input):
    """What a list is narrowed by, in the query string; ``limit`` and ``cursor`` are for its pages to read."""

    read_elsewhere = ("limit", "cursor")


class ArchiveIn(Input):
    """Whether lists and pickers hide it."""

    archived = serializers.BooleanField()


class Nothing(Input):
    """An empty body."""


class Link(serializers.Field[Any, Any, str, Any]):
    """Absolute address of a view; each argument is an attribute path of the object."""

    def __init__(self, view: str, **arguments: str) -> None:
        self._view = view
        self._arguments = arguments
        super().__init__(source="*", read_only=True)

    def to_representation(self, value: Any) -> str:
        kwargs = {name: _follow(value, path) for name, path in self._arguments.items()}
        return str(reverse(f"api:{self._view}", kwargs=kwargs, request=self.context.get("request")))


extend_schema_field({"type": "string", "format": "uri", "readOnly": True})(Link)


def _follow(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def documented_by(spec: type[Spec]) -> Callable[[type[FieldT]], type[FieldT]]:
    """Have the OpenAPI document describe a field by a spec's own schema."""
    described: Any = spec  # the extension of `controlplane.api.schema` takes specs, which the stubs do not know
    return extend_schema_field(described)


# JSON that is described, in the OpenAPI document, by the one definition that also validates it.


@documented_by(WorkloadSpec)
class WorkloadSpecField(serializers.JSONField):
    """A workload spec."""


@documented_by(PolicySpec)
class PolicySpecField(serializers.JSONField):
    """A policy spec."""


@documented_by(ExperimentSpec)
class ExperimentSpecField(serializers.JSONField):
    """An experiment spec."""


@documented_by(Profile)
class ProfileField(serializers.JSONField):
    """A calibrated profile."""


@documented_by(RunSummary)
class SummaryField(serializers.JSONField):
    """A run's summary."""


@documented_by(Verdict)
class VerdictField(serializers.JSONField):
    """A verdict."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class ObjectField(serializers.JSONField):
    """A JSON object without a schema of its own."""


class StudySpecField(serializers.JSONField):
    """A guided, search or prediction spec."""


@documented_by(SearchResult)
class SearchResultField(serializers.JSONField):
    """What a search found."""


@documented_by(PredictionResult)
class PredictionResultField(serializers.JSONField):
    """What was predicted, and what came of it."""
