"""Devices under a server as metric sources: NVML on this machine, DCGM's exporter by page; absent is never 0."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runner.server.client.events import Clock
from gpu_runner.server.observe.mapping import DCGM, map_of, read_levels, read_totals
from gpu_runner.server.observe.nvml import NvmlDevices
from gpu_runner.server.observe.page import Page
from scheduler_core.evidence.client.observations import LEVELS, TOTALS, Observations
from scheduler_core.evidence.metrics.cost import prices_per_hour
from scheduler_core.types.client_records import Observed

# Two devices of one host, in the form that DCGM's exporter writes; memory in MiB, energy in mJ.
DCGM_PAGE = """
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",device="nvidia0",modelName="X",Hostname="h"} 1400
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-b",device="nvidia1",modelName="X",Hostname="h"} 1600
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 300.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 299.5
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a"} 5000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-b"} 7000
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b"} 100
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a"} 1024
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b"} 1
"""


class NotSupportedError(Exception):
    pass


class Nvml:
    """A library as NVML's Python binding is, over made-up devices: (busy %, bytes, mW, MHz, mJ)."""

    NVMLError = NotSupportedError
    NVML_CLOCK_SM = 1

    def __init__(self, *devices: tuple[int, int, int, int, int | None]) -> None:
        self.devices = list(devices)
        self.open = False

    def nvmlInit(self) -> None:  # noqa: N802 - as the binding spells it
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.devices[device][0])

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=self.devices[device][1])

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        return self.devices[device][2]

    def nvmlDeviceGetClockInfo(self, device: int, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return self.devices[device][3]

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:  # noqa: N802
        energy = self.devices[device][4]
        if energy is None:
            raise NotSupportedError("not supported")
        return energy


def look(source: NvmlDevices) -> Observed:
    return asyncio.run(source.look(Clock(0)))


def test_dcgm_pages_are_read_in_plain_units() -> None:
    """(1,400 + 1,600) / 2 MHz, 600 W, 12 J, (80 + 100) / 2 %, 1,025 MiB."""
    page = Page.read(DCGM_PAGE)
    assert map_of(page) is DCGM
    assert read_levels(DCGM, page) == {
        "device_clock_hz": 1.5e9,
        "device_power_w": 600,
        "device_busy_share": pytest.approx(0.9),
        "device_memory_bytes": 1025 * 2**20,
    }
    assert read_totals(DCGM, page) == {"device_energy_j": 12}
    assert set(DCGM.levels) <= set(LEVELS) and set(DCGM.totals) <= set(TOTALS)


def test_nvml_gives_levels_and_the_growth_of_energy() -> None:
    library = Nvml((50, 10, 100_000, 1000, 4000), (100, 20, 200_000, 2000, 6000))
    source = NvmlDevices(library)
    first = look(source)
    assert first.values == {
        "device_busy_share": 0.75,
        "device_memory_bytes": 30,
        "device_power_w": 300,
        "device_clock_hz": 1.5e9,
        "device_energy_j": 0,
    }
    library.devices[0] = (50, 10, 100_000, 1000, 9000)
    assert look(source).values["device_energy_j"] == 5
    source.close()
    assert not library.open


def test_what_a_device_does_not_tell_is_absent() -> None:
    seen = look(NvmlDevices(Nvml((50, 10, 100_000, 1000, 4000), (100, 20, 200_000, 2000, None))))
    assert "device_energy_j" not in seen.values
    assert seen.values["device_power_w"] == 300


def test_without_a_library_or_a_device_the_reason_is_said() -> None:
    none = look(NvmlDevices(Nvml()))
    assert (none.values, none.problem) == ({}, "NVML finds no device")
    broken = Nvml((0, 0, 0, 0, 0))
    broken.nvmlInit = lambda: (_ for _ in ()).throw(NotSupportedError("driver not loaded"))  # type: ignore[method-assign]
    assert look(NvmlDevices(broken)).problem == "NVML: driver not loaded"


def test_shares_of_several_sources_are_averaged_and_amounts_added() -> None:
    seen = Observations()
    for name, share, power in (("a", 0.2, 100.0), ("b", 0.6, 300.0)):
        for at in (0, 10):
            seen.take(Observed(at, name, "devices", "x", {"device_busy_share": share, "device_power_w": power}))
            seen.take(Observed(at, f"server-{name}", "unified", "x", {"kv_share": share}))
    assert seen.mean("device_busy_share", 0, 10) == pytest.approx(0.4)
    assert seen.mean("kv_share", 0, 10) == pytest.approx(0.4)
    assert seen.mean("device_power_w", 0, 10) == 400


def test_a_monitor_is_no_instance_and_has_no_price() -> None:
    sources = [{"price_per_hour": 2.0, "role": "unified"}, {"price_per_hour": None, "role": "devices"}]
    assert prices_per_hour({"server": {"sources": sources}}, []) == [2.0]
