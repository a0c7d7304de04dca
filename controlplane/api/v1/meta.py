"""About the installation and the caller: liveness, the person, metrics, and the schemas of specs."""

from typing import Any

from django.http import Http404
from drf_spectacular.renderers import OpenApiJsonRenderer2
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from drf_spectacular.views import SpectacularAPIView
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import ApiToken, User
from controlplane.api.base import ApiView
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile, TargetSpec
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.verdict.schema import Verdict

SCHEMAS: dict[str, type[Spec]] = {
    "experiment": ExperimentSpec,
    "workload": WorkloadSpec,
    "policy": PolicySpec,
    "target": TargetSpec,
    "goal": GoalSpec,
    "profile": Profile,
    "summary": RunSummary,
    "verdict": Verdict,
}


_METRIC_FIELDS = ("name", "unit", "formula", "better", "scope", "sample_rule")


class HealthOut(serializers.Serializer[Any]):
    """Alive."""

    status = serializers.ChoiceField(["ok"])


class TokenOut(serializers.ModelSerializer[ApiToken]):
    """An API token, without its secret."""

    class Meta:
        model = ApiToken
        fields = ("name", "prefix", "read_only", "created_at", "expires_at", "last_used_at")


class MeOut(serializers.ModelSerializer[User]):
    """Who is asking, and with which token."""

    token = serializers.SerializerMethodField()

    class Meta:
        model = User
        fields = ("username", "is_staff", "token")

    @extend_schema_field(TokenOut(allow_null=True))
    def get_token(self, user: User) -> Any:
        token = self.context["request"].auth
        return TokenOut(token).data if isinstance(token, ApiToken) else None


class Health(ApiView):
    """Liveness for load balancers: says nothing else to strangers."""

    authentication_classes = []
    permission_classes = [AllowAny]

    @extend_schema(operation_id="health", tags=["about"], auth=[], responses=HealthOut)
    def get(self, request: Request) -> Response:
        """Whether the web process answers."""
        return Response({"status": "ok"})


class Me(ApiView):
    """The caller."""

    @extend_schema(operation_id="me", tags=["about"], responses=MeOut)
    def get(self, request: Request) -> Response:
        """Who is asking, and what the token may do."""
        return Response(MeOut(self.person, context={"request": request}).data)


class MetricOut(serializers.Serializer[Any]):
    """One metric."""

    name = serializers.CharField()
    unit = serializers.CharField()
    formula = serializers.CharField()
    better = serializers.ChoiceField(["lower", "higher", "none"])
    scope = serializers.ChoiceField(["request", "run", "pool", "step"])
    sample_rule = serializers.CharField()


class Metrics(ApiView):
    """The metrics that summaries hold and goals name."""

    @extend_schema(operation_id="metrics", tags=["about"], responses=MetricOut(many=True))
    def get(self, request: Request) -> Response:
        """Every metric: name, unit, direction in which it is better, meaning."""
        from scheduler_core.evidence.metrics.registry import METRICS  # NumPy comes with it: only for who asks

        return Response([{name: getattr(metric, name) for name in _METRIC_FIELDS} for metric in METRICS.values()])


class SpecSchemas(ApiView):
    """JSON Schemas of what users write and read."""

    @extend_schema(
        operation_id="schemas_list",
        tags=["about"],
        responses={200: serializers.ListSerializer(child=serializers.CharField())},
    )
    def get(self, request: Request) -> Response:
        """Names of the schemas."""
        return Response(list(SCHEMAS))


class SpecSchema(ApiView):
    """One JSON Schema."""

    @extend_schema(operation_id="schemas_show", tags=["about"], responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, name: str) -> Response:
        """The JSON Schema of one kind of spec."""
        if name not in SCHEMAS:
            raise Http404
        return Response(SCHEMAS[name].model_json_schema())


class OpenApiDocument(SpectacularAPIView):
    """The OpenAPI document of this API."""

    renderer_classes = [OpenApiJsonRenderer2]
