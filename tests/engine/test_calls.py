"""Kernels that are called together do what they do one by one."""

import ctypes
from typing import Any

import pytest
import torch

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.model import decoder
from gpu_runner.engine.native import calls
from gpu_runner.engine.native.calls import Kernel, together
from gpu_runner.engine.native.compiled import UnavailableError, library
from tests.engine.conftest import settings_for
from tests.engine.test_token_identity import play_all

try:
    library()
except UnavailableError as missing:
    pytest.skip(str(missing), allow_module_level=True)


class Given(ctypes.Structure):
    """What the kernels of these tests are given."""

    _fields_ = [("number", ctypes.c_int)]


def kernel(name: str, function: Any) -> Kernel:
    """A kernel that is Python's own ``function(number)``."""
    made = object.__new__(Kernel)
    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Given))(lambda given: function(given[0].number))
    made._function, made.name, made.address = called, name, ctypes.cast(called, ctypes.c_void_p).value
    return made
