"""The command line starts fast: nothing heavy is imported until a command needs it."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "scipy", "pyarrow", "django", "httpx", "transformers", "yaml")


def _modules_after(*arguments: str) -> set[str]:
    """Top-level modules loaded by a run of the command line, in a fresh interpreter."""
    code = (
        "import sys; from headway.cli import main\n"
        f"status = main({list(arguments)!r})\n"
        "print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stderr.split("\n")[-2].split())


@pytest.mark.parametrize("arguments", [("--help",), ("play", "--help"), ("trace", "inspect", "--help")])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert _modules_after(*arguments).isdisjoint(HEAVY)


def test_no_command_of_the_client_loads_django_or_torch() -> None:
    loaded = _modules_after("list", "--url", "ftp://nowhere")
    assert loaded.isdisjoint({"torch", "django", "controlplane", "scipy", "pyarrow"})


def test_the_module_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "headway", "bogus"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "No such command" in ran.stderr
