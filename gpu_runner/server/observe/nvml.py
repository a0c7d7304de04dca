"""The NVIDIA devices of this machine as a metric source, through NVML (package ``nvidia-ml-py``)."""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gpu_runner.server.client.events import Clock
from gpu_runner.server.observe.source import Growth
from scheduler_core.types.client_records import Observed

NAME = "nvml"
ROLE = "devices"


class NvmlDevices:
    """Looks at all devices; what one of them does not tell is absent, and why nothing can be told is said once a look.

    Energy is a counter since the driver was loaded, in mJ; where a device has none it is left out, not made of power.
    """

    name = NAME

    def __init__(self, library: Any = None) -> None:
        self._growth = Growth()
        self._problem = ""
        self._nvml, self._handles = library, []
        try:
            self._nvml = library or import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        except ImportError:
            self._problem = "NVML: the package nvidia-ml-py is not installed"
        except self._errors() as error:
            self._problem = f"NVML: {error}"

    async def look(self, clock: Clock) -> Observed:
        """One look at every device."""
        if not self._handles:
            return self._observed(clock, {}, self._problem or "NVML finds no device")
        return self._observed(clock, self._levels() | self._grown())

    def close(self) -> None:
        """Let go of the library."""
        if self._handles:
            self._nvml.nvmlShutdown()

    def _errors(self) -> type[Exception]:
        found = getattr(self._nvml, "NVMLError", None)
        return found if isinstance(found, type) and issubclass(found, Exception) else OSError

    def _levels(self) -> dict[str, float]:
        nvml = self._nvml
        asked: Mapping[str, Callable[[Any], float]] = {
            "device_busy_share": lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            "device_memory_bytes": lambda device: nvml.nvmlDeviceGetMemoryInfo(device).used,
            "device_power_w": lambda device: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            "device_clock_hz": lambda device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) * 1e6,
        }
        found = {}
        for name, ask in asked.items():
            values = self._of_all(ask)
            if values:
                averaged = name in ("device_busy_share", "device_clock_hz")
                found[name] = sum(values) / (len(values) if averaged else 1)
        return found

    def _grown(self) -> dict[str, float]:
        energies = self._of_all(lambda device: self._nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3)
        return self._growth.take({"device_energy_j": sum(energies)})[0] if energies else {}

    def _of_all(self, ask: Callable[[Any], float]) -> list[float]:
        """The value of every device; nothing when one of them has none."""
        try:
            return [float(ask(device)) for device in self._handles]
        except self._errors():
            return []

    def _observed(self, clock: Clock, values: dict[str, float], problem: str = "") -> Observed:
        return Observed(clock.of(time.monotonic_ns()), NAME, ROLE, ROLE, values, problem=problem)
