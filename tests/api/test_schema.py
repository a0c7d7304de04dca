"""The committed OpenAPI document is the API's own, and describes what is really answered."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from tests.api.conftest import Api, World

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.yaml"
REGENERATE = "HEADWAY_DEBUG=1 python manage.py spectacular --validate --file docs/openapi.yaml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    made: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return made


def _plain(value: Any) -> Any:
    import json

    return json.loads(json.dumps(value))


def test_the_committed_document_has_not_drifted(document: dict[str, Any]) -> None:
    committed = yaml.safe_load(COMMITTED.read_text())
    assert committed == _plain(document), f"the API changed; look at the difference and run: {REGENERATE}"


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate_schema(document)  # type: ignore[no-untyped-call]


def test_every_operation_is_named_tagged_and_described(document: dict[str, Any]) -> None:
    names = []
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            names.append(operation["operationId"])
            assert operation["description"], (path, verb)
            assert operation["tags"], (path, verb)
            if verb != "get":
                headers = [item["name"] for item in operation["parameters"] if item["in"] == "header"]
                assert "Idempotency-Key" in headers, (path, verb)
    assert len(names) == len(set(names))


def test_specs_are_described_by_their_one_definition(document: dict[str, Any]) -> None:
    from scheduler_core.spec.experiment import ExperimentSpec

    body = document["paths"]["/api/v1/experiments"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ExperimentSpec"}
    described = document["components"]["schemas"]["ExperimentSpec"]
    assert set(described["properties"]) == set(ExperimentSpec.model_fields)


@pytest.mark.usefixtures("folder")
def test_answers_fit_what_is_described(world: World, api: Api, document: dict[str, Any]) -> None:
    """Every GET without arguments beyond our one of everything, checked against its response schema."""
    ids = {
        "datasets": world.dataset.pk,
        "workloads": world.workload.pk,
        "policies": world.policy.pk,
        "experiments": world.experiment.pk,
        "runs": world.run.pk,
        "profiles": world.profile.pk,
        "studies": world.study.pk,
        "endpoints": world.endpoint.pk,
    }
    checked = 0
    for path, verbs in document["paths"].items():
        content = verbs.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in content:
            continue
        kind = path.split("/")[3]
        address = path.replace("{id}", ids.get(kind, "")).replace("{number}", "1").replace("{name}", "experiment")
        answer = api.get(address).json()
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        problems = [error.message for error in Draft202012Validator(_plain(schema)).iter_errors(answer)]
        assert problems == [], (path, problems[:3])
        checked += 1
    assert checked > 20
