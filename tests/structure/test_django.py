"""The control plane as a deployment: migrations, deployment check, static files, and what its processes load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

from tests.structure.sources import ROOT

CHART_JS = "unfold/js/chart/chart.js"
CHART_JS_VERSION = "4.4.0"


def _run(home: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_"))}
    env |= {"HEADWAY_HOME": str(home), "SECRET_KEY": "k3y-" * 20 + "!%a_Z09", **environ}
    return subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_migrations_are_complete(tmp_path: Path) -> None:
    done = _run(tmp_path, "manage.py", "makemigrations", "--check", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr


def test_deployment_check_is_clean(tmp_path: Path) -> None:
    done = _run(tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING", HEADWAY_HTTPS="1")
    assert done.returncode == 0, done.stderr


def test_no_secret_key_no_start(tmp_path: Path) -> None:
    done = _run(tmp_path, "-c", "import django; django.setup()", DJANGO_SETTINGS_MODULE="controlplane.settings")
    assert done.returncode == 0, done.stderr
    code = "import os; del os.environ['SECRET_KEY']; import django; django.setup()"
    refused = _run(tmp_path, "-c", code, DJANGO_SETTINGS_MODULE="controlplane.settings")
    assert "set SECRET_KEY" in refused.stderr


def test_chart_js_comes_from_the_pinned_package() -> None:
    found = finders.find(CHART_JS)
    assert found, f"{CHART_JS} is not among the static files"
    assert f'version="{CHART_JS_VERSION}"' in Path(found).read_text()


@pytest.mark.parametrize(
    "load",
    [
        "import controlplane.asgi; from django.urls import get_resolver; get_resolver().url_patterns",
        "import controlplane.celery as c; c.app.loader.import_default_modules()",
    ],
    ids=["web", "worker"],
)
def test_server_processes_never_load_torch(tmp_path: Path, load: str) -> None:
    code = f"{load}; import sys; print([m for m in ('torch', 'gpu_runner', 'transformers') if m in sys.modules])"
    done = _run(tmp_path, "-c", code)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stderr


def test_a_command_before_the_first_start_says_what_comes_first(tmp_path: Path) -> None:
    done = _manage("api_token", "admin", HEADWAY_HOME=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"headway: no Headway was started in {tmp_path} yet: `make up` first")


def test_a_command_on_a_database_without_tables_says_how_they_are_made(tmp_path: Path) -> None:
    """As after a first start that was stopped half-way."""
    database = f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    done = _manage("api_token", "admin", SECRET_KEY="s" * 60, DATABASE_URL=database)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("headway: the database cannot answer (no such table: accounts_user)")
    assert "`manage.py migrate`" in done.stderr


def _manage(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A management command with nothing but ``settings`` said of the installation."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "SECRET_"))
    }
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
