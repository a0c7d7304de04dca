"""The team deployment file: every command, setting, secret and volume it names exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands

from controlplane.embedded import programs
from installer import secrets as deployment_secrets
from tests.structure.sources import ROOT, sources

IMAGE_VARIABLES = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE", "FORWARDED_ALLOW_IPS"}
OURS = ("migrate", "web", "dispatch", "worker-cpu", "worker-cuda")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return data


def _command(service: dict[str, Any]) -> list[str]:
    """Its words; of a shell line the last command, which replaces the shell."""
    command: list[str] = service["command"]
    if command[:2] == ["sh", "-c"]:
        return shlex.split(command[2].split("&&")[-1])[1:]
    return command


def _settings_variables() -> set[str]:
    """Names that the control plane reads from its environment."""
    found: set[str] = set()
    for source in sources():
        if source.module.startswith("controlplane"):
            found |= set(re.findall(r'env\.(?:text|flag|number|words)\(\s*"([A-Z_]+)"', source.text))
    return found


def test_the_services_are_those_of_the_design(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"postgres", "redis", *OURS}
    assert compose["services"]["worker-cuda"]["profiles"] == ["cuda"]


def test_every_setting_is_read_somewhere(compose: dict[str, Any]) -> None:
    known = _settings_variables()
    assert {"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} <= known
    for service in compose["services"].values():
        for name in service.get("environment", {}):
            assert name in IMAGE_VARIABLES or name.removesuffix("_FILE") in known, name


def test_every_management_command_exists(compose: dict[str, Any]) -> None:
    commands = get_commands()
    text = " ".join(str(word) for s in OURS for word in compose["services"][s]["command"])
    text += (ROOT / "docker-compose.yml").read_text() + (ROOT / "Dockerfile").read_text().replace('", "', " ")
    named = set(re.findall(r"manage\.py ([a-z_]+)", text))
    assert {"migrate", "collectstatic", "create_user", "check"} <= named
    assert named <= set(commands), named - set(commands)
    assert compose["services"]["dispatch"]["command"][-1] in commands


def test_web_starts_with_options_uvicorn_knows_and_the_embedded_stack_uses(compose: dict[str, Any]) -> None:
    from uvicorn.main import main as uvicorn

    words = _command(compose["services"]["web"])
    assert words[:3] == ["python", "-m", "uvicorn"]
    team = uvicorn.make_context("uvicorn", words[3:]).params
    embedded = uvicorn.make_context("uvicorn", list(programs.web(8000).argv[3:])).params
    differing = {name for name in team if team[name] != embedded[name]}
    assert differing == {"host", "proxy_headers"}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_workers_start_as_in_the_embedded_stack(compose: dict[str, Any], kind: str) -> None:
    from celery.bin.worker import worker

    service = compose["services"][f"worker-{kind}"]
    words, embedded = service["command"], programs.worker(kind)
    assert words[:6] == ["python", *embedded.argv[1:6]]

    def options(argv: list[str]) -> dict[str, Any]:
        return dict(worker.make_context("worker", argv, resilient_parsing=True).params)

    assert options(words[6:]) == options(list(embedded.argv[6:]))
    assert service["environment"]["HEADWAY_DEVICE_KIND"] == embedded.env["HEADWAY_DEVICE_KIND"] == kind


def test_secrets_volumes_and_dependencies_exist(compose: dict[str, Any], tmp_path: Path) -> None:
    written = deployment_secrets.contents()
    for name, secret in compose["secrets"].items():
        assert secret["file"] == f"./secrets/{name}"
        assert name in written
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        for name, value in service.get("environment", {}).items():
            if name.endswith("_FILE"):
                assert Path(value).name in service["secrets"]


def test_only_loopback_is_published(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8000:8000"]


def test_health_checks_compile(compose: dict[str, Any]) -> None:
    for name in ("postgres", "redis", "web", "worker-cpu", "worker-cuda"):
        assert compose["services"][name]["healthcheck"]["test"]
    code = compose["services"]["web"]["healthcheck"]["test"][-1]
    compile(code, "healthcheck", "exec")
    from django.urls import reverse

    assert reverse("api:health") in code


def test_secrets_are_written_once_and_privately(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert deployment_secrets.write(folder) is True
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert deployment_secrets.write(folder) is False
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert folder.stat().st_mode & 0o777 == 0o700
    assert first["postgres_password"] in first["database_url"]
    assert first["redis_password"] in first["redis_url"]


def test_settings_accept_the_deployment_s_environment(compose: dict[str, Any], tmp_path: Path) -> None:
    """Loaded with secrets from files, as in the containers."""
    deployment_secrets.write(tmp_path / "secrets")
    environ = {"PATH": "/usr/bin:/bin", "HEADWAY_HOME": str(tmp_path / "data")}
    for name, value in compose["services"]["web"]["environment"].items():
        value = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
        environ[name] = value.replace("/run/secrets", str(tmp_path / "secrets"))
    code = (
        "from django.conf import settings as s; d = s.DATABASES['default']; "
        "print(d['ENGINE'], d['HOST'], d['NAME'], s.CELERY_BROKER_URL.rsplit('@')[1], s.DEBUG)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["django.db.backends.postgresql", "postgres", "headway", "redis:6379/0", "False"], (
        done.stderr
    )
