"""NUL in an address: SQLite finds nothing, PostgreSQL refuses the question; both must answer 404."""

import pytest

from tests.api.conftest import Api


@pytest.mark.parametrize("path", ["/runs/run_a%00b", "/experiments/exp_%00/cancel"])
def test_nul_is_not_found(api: Api, path: str) -> None:
    response = api.client.get(f"/api/v1{path}", headers=api.headers)
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"
