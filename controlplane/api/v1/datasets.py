"""Imported traces."""

import json
from typing import Any

from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created
from controlplane.api.downloads import attachment
from controlplane.api.fields import ChoiceField, Input, Link, ObjectField
from controlplane.workloads import selectors, services
from controlplane.workloads.logs import IMPORTED
from controlplane.workloads.models import Dataset
from scheduler_core.spec.drawing import Drawing

TAGS = ["traces"]


def _drawn(name: str) -> str:
    return f"Format servegen: {Drawing.model_fields[name].description}"


class TraceIn(Input):
    """A trace file and how to read it."""

    file = serializers.FileField(help_text="The trace file, or a log that is made into one and not kept.")
    more = serializers.ListField(
        child=serializers.FileField(), required=False, help_text="Format servegen: the other files of the clients."
    )
    format = ChoiceField(
        [name for name, _ in IMPORTED],
        required=False,
        help_text="Absent: a trace, its format found out from its first rows. Logs and clients must be named.",
    )
    columns = serializers.CharField(
        required=False, help_text='Column names of a csv or jsonl file, as JSON: {"arrival": "t", ...}.'
    )
    time_unit = ChoiceField(["s", "ms", "us", "ns"], required=False)
    block_size = serializers.IntegerField(required=False, min_value=1, max_value=1_000_000)
    same_instant = ChoiceField(["keep", "spread"], required=False)
    zero_output = ChoiceField(["drop", "one"], required=False)
    from_s = serializers.IntegerField(required=False, min_value=0, help_text=_drawn("from_s"))
    for_s = serializers.IntegerField(required=False, min_value=1, help_text=_drawn("for_s"))
    rate_scale = serializers.FloatField(required=False, help_text=_drawn("rate_scale"))
    draw_seed = serializers.IntegerField(required=False, min_value=0, help_text=_drawn("draw_seed"))

    def validate_columns(self, value: str) -> Any:
        try:
            columns = json.loads(value)
        except (ValueError, RecursionError):
            columns = None
        if not isinstance(columns, dict):
            raise serializers.ValidationError('write a JSON object such as {"arrival": "t", "prompt_tokens": "in"}')
        return columns


class DatasetIn(TraceIn):
    """A trace file with the name to keep it under."""

    name = serializers.CharField(required=False, max_length=100, help_text="Absent: the file's name.")


class DatasetOut(serializers.ModelSerializer[Dataset]):
    """An imported trace and what its reader found."""

    url = Link("dataset", pk="pk")
    owner = serializers.CharField(source="owner.username")
    options = ObjectField()
    inspection = ObjectField()

    class Meta:
        model = Dataset
        fields = (
            "id", "url", "name", "owner", "format", "options", "sha256", "bytes", "inspection", "created_at",
        )  # fmt: skip


class Datasets(ListView):
    """All imported traces; import of one more."""

    parser_classes = [MultiPartParser]

    @extend_schema(operation_id="datasets_list", tags=TAGS, responses=DatasetOut(many=True))
    def get(self, request: Request) -> Response:
        """Imported traces, newest first."""
        return self.page(selectors.datasets_visible_to(request.user), DatasetOut)

    @extend_schema(operation_id="datasets_import", tags=TAGS, request=DatasetIn, responses={201: DatasetOut})
    def post(self, request: Request) -> Response:
        """Import a trace file, or make one of a log or of fitted clients: all of it or nothing."""
        options = self.read(DatasetIn)
        given = {name: options.pop(name) for name in ("file", "more", "format") if name in options}
        name = options.pop("name", "") or str(given["file"].name)[:100]
        dataset = services.import_trace(owner=self.person, name=name, options=options, **given)
        data = DatasetOut(dataset, context={"request": request}).data
        return created(data, data["url"])


class DatasetInspection(ApiView):
    """What a reader finds in a trace file, with nothing kept."""

    parser_classes = [MultiPartParser]

    @extend_schema(operation_id="datasets_inspect", tags=TAGS, request=TraceIn, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request) -> Response:
        """Inspect a trace file without importing it."""
        options = self.read(TraceIn)
        given = {name: options.pop(name) for name in ("file", "more", "format") if name in options}
        return Response(services.inspect_trace(options=options, **given))


class DatasetDetail(ApiView):
    """One imported trace."""

    @extend_schema(operation_id="datasets_show", tags=TAGS, responses=DatasetOut)
    def get(self, request: Request, pk: str) -> Response:
        """One imported trace and what its reader found."""
        dataset = get_object_or_404(selectors.datasets_visible_to(request.user), pk=pk)
        return Response(DatasetOut(dataset, context={"request": request}).data)

    @extend_schema(operation_id="datasets_delete", tags=TAGS, responses={204: None})
    def delete(self, request: Request, pk: str) -> Response:
        """Remove an imported trace; 409 while a workload plays it."""
        dataset = get_object_or_404(selectors.datasets_visible_to(request.user), pk=pk)
        services.delete_dataset(dataset=dataset, user=self.person)
        return Response(status=204)


class DatasetFile(ApiView):
    """The trace file as it was uploaded."""

    @extend_schema(operation_id="datasets_download", tags=TAGS, responses={(200, "application/octet-stream"): bytes})
    def get(self, request: Request, pk: str) -> HttpResponseBase:
        """Download the trace file, byte for byte."""
        dataset = get_object_or_404(selectors.datasets_visible_to(request.user), pk=pk)
        return attachment(dataset.file.open("rb"), name=f"{dataset.pk}.trace", size=dataset.bytes)
