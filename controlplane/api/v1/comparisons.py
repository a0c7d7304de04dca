"""Verdicts on results measured elsewhere."""

import json
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.api.fields import ChoiceField, Input, SummaryField, VerdictField
from controlplane.experiments.measured import judge_uploads
from scheduler_core.evidence.imported.readers import READERS
from scheduler_core.verdict.text import render

TAGS = ["comparisons"]


class ComparisonIn(Input):
    """Result files, each with its arm: `arm` and `file` are given as often as there are files, in one order."""

    arm = serializers.ListField(child=serializers.CharField(max_length=64), min_length=2, max_length=200)
    file = serializers.ListField(child=serializers.FileField(), min_length=2, max_length=200)
    name = serializers.CharField(required=False, max_length=64)
    baseline = serializers.CharField(
        required=False, max_length=64, help_text="Absent: the arm named baseline, or else the first."
    )
    tool = ChoiceField(list(READERS), required=False, help_text="Absent: found out for each file.")
    goal = serializers.CharField(required=False, max_length=10_000, help_text="A goal spec as JSON; absent: defaults.")

    def validate_goal(self, value: str) -> Any:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise serializers.ValidationError('write JSON such as {"primary": "ttft_p95_ms"}') from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs["arm"]) != len(attrs["file"]):
            message = f"{len(attrs['arm'])} arms for {len(attrs['file'])} files; give one arm with each file"
            raise serializers.ValidationError({"arm": [message]})
        return attrs


class ComparisonOut(serializers.Serializer[Any]):
    """A verdict with what it was made from."""

    verdict = VerdictField()
    text = serializers.CharField(help_text="The verdict in the words of a terminal.")
    notes = serializers.ListField(child=serializers.CharField(), help_text="How the files were read.")
    runs = serializers.ListField(child=SummaryField())


class Comparisons(ApiView):
    """A comparison of results measured elsewhere."""

    parser_classes = [MultiPartParser]

    @extend_schema(operation_id="comparisons_judge", tags=TAGS, request=ComparisonIn, responses=ComparisonOut)
    def post(self, request: Request) -> Response:
        """Judge result files of other load tools by the rules of experiments; nothing is kept."""
        asked = self.read(ComparisonIn)
        files = list(zip(asked.pop("arm"), asked.pop("file"), strict=True))
        judged = judge_uploads(user=self.person, files=files, asked=asked)
        return Response(
            {
                "verdict": judged.verdict.canonical(),
                "text": render(judged.verdict),
                "notes": list(judged.notes),
                "runs": [run.canonical() for run in judged.runs],
            }
        )
