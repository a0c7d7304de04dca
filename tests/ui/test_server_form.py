"""The form of a server target: what is drawn and posted back unchanged is the same experiment."""

from typing import Any

from controlplane.accounts.models import User
from controlplane.ui.setting import experiment_setting
from controlplane.ui.specform.reading import read
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from tests.ui.conftest import World
from tests.ui.test_specform import posted

SPEC: dict[str, Any] = {
    "name": "two servers",
    "workload": {"profile": "azure-2023-conv", "rate_rps": 2, "requests": 20},
    "target": {
        "server": {
            "arms": {
                "old": {"endpoint": "lab"},
                "new": {
                    "url": "http://127.0.0.1:8001",
                    "sources": [{"url": "http://127.0.0.1:8002", "role": "decode", "pool": "d", "devices": 2}],
                },
            },
            "client": {"retry": {"tries": 2}},
        }
    },
    "arms": {"old": {"policy": "as_served"}, "new": {"policy": "as_served"}},
    "baseline": "old",
}


def test_a_server_experiment_survives_its_form(owner: User, world: World) -> None:
    setting = experiment_setting(owner)
    back = read(ExperimentSpec, posted(ExperimentSpec, SPEC, setting), setting)
    assert parse(ExperimentSpec, back) == parse(ExperimentSpec, SPEC)
    offered = dict(setting.choices[next(key for key in setting.choices if key[1] == "endpoint")])
    assert "lab" in offered
