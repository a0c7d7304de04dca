"""What the documentation names exists: files, commands, settings, links; and its examples are accepted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands

from scheduler_core.policies.registry import manifests
from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.studies import GuidedSpec, SearchSpec
from tests.structure.sources import ROOT, sources

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture(params=PAGES, ids=lambda path: path.name)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target and not target.endswith(".png")]
    assert not [target for target in local if not (page.parent / target).exists()]


def test_paths_exist(page: Path) -> None:
    """Words in backticks that look like files of the tree; paths of the control plane may leave its name out."""
    for word in re.findall(r"`([a-z_]+(?:/[A-Za-z_.]+)+)`", page.read_text()):
        assert any((base / word).exists() for base in (ROOT, ROOT / "controlplane", page.parent)) or word.startswith(
            ("policies/", "logs/", "path/", "kv/", "inference")
        ), word


def test_management_commands_exist(page: Path) -> None:
    named = set(re.findall(r"manage\.py ([a-z_]+)", page.read_text())) - {"up"}
    assert named <= set(get_commands())


def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^|\s)make ([a-z]+)(?=[\s`;]|$)", page.read_text(), re.MULTILINE))
    assert named <= targets


def test_settings_exist(page: Path) -> None:
    texts = "\n".join(source.text for source in sources()) + (ROOT / "docker-compose.yml").read_text()
    texts += "HEADWAY_TOKEN HEADWAY_FLAVOUR"
    assert not [name for name in set(re.findall(r"\bHEADWAY_[A-Z_]+", page.read_text())) if name not in texts]


def test_command_line_commands_exist(page: Path) -> None:
    app = (ROOT / "headway" / "cli" / "app.py").read_text()
    known = set(re.findall(r'(?:command\(|name=)"([a-z]+)"\)', app))
    named = set(re.findall(r"(?:`|^|bin/)headway ([a-z]+)(?= [A-Za-z./`]|`|$)", page.read_text(), re.MULTILINE))
    assert named <= known


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(path: Path) -> None:
    studies: dict[str, type[Spec]] = {
        "guided.yaml": GuidedSpec,
        "search.yaml": SearchSpec,
        "topology-search.yaml": SearchSpec,
    }
    kind = studies.get(path.name)
    if kind is not None:
        parse(kind, yaml.safe_load(path.read_text()))
        return
    spec = parse(ExperimentSpec, yaml.safe_load(path.read_text()))
    assert len(spec.arms) >= 2


def test_yaml_in_pages_is_accepted() -> None:
    found = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "start-here.md").read_text(), re.DOTALL)
    assert found
    for text in found:
        parse(ExperimentSpec, yaml.safe_load(text))


def test_every_built_in_policy_is_described() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    assert not [name for name in manifests() if f"`{name}`" not in text]


def test_the_policy_of_the_page_works(tmp_path: Path) -> None:
    """As an installed package would: its module is importable, its builder makes a policy."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "policies.md").read_text(), re.DOTALL)
    (tmp_path / "shortest_prompt.py").write_text(code)
    check = (
        "import shortest_prompt as o\n"
        "from scheduler_core.sched.policy import Limits\n"
        "limits = Limits(size=4, token_budget=64, block_size=16, kv_blocks=32, model_length=256)\n"
        "made = o.build(o.SHORTEST_PROMPT.defaults, limits)\n"
        "print(made.name, type(made.order).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["shortest_prompt", "ShortestPrompt"], done.stderr


def test_rest_paths_exist() -> None:
    from django.urls import resolve

    text = (ROOT / "docs" / "api.md").read_text()
    for path in ("experiments", "experiments/check", "me", "health", "metrics", "openapi", "schemas"):
        assert path in text
        resolve(f"/api/v1/{path}")


def test_the_socket_s_path_and_close_codes_are_told() -> None:
    from controlplane.live.protocol import Close

    text = (ROOT / "docs" / "live-protocol.md").read_text()
    assert "`/live/`" in text
    assert all(f"| {int(code)} |" in text for code in Close)
