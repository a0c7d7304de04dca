"""Fixtures of the workload tests."""

import json
import os
from pathlib import Path

import pytest

from tests.workload.examples import TRACE_LINES


@pytest.fixture
def mooncake_bytes() -> bytes:
    """A tiny file of Mooncake's form: four rows, two of them at one time."""
    return "\n".join(json.dumps(line) for line in TRACE_LINES).encode()


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces."""
    folder = os.environ.get("HEADWAY_TRACES")
    if not folder:
        pytest.skip("HEADWAY_TRACES is unset: it names a folder with the public traces")
    return Path(folder)
