"""Well-known devices by their makers' public specifications: what they could do at best, not what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Peak dense rates of one device: 10^12 operations per second by width of an operand, 10^9 bytes per second.

    ``tflops_8`` is None where the device has no faster 8-bit arithmetic. ``link_gb_per_s`` is the bandwidth to the
    other devices of its machine, one way.
    """

    name: str
    title: str
    tflops_16: float
    tflops_8: float | None
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    source: str

    def tflops(self, bits: int) -> float:
        """Peak rate for operands of ``bits`` bits."""
        return self.tflops_8 if bits == 8 and self.tflops_8 is not None else self.tflops_16


_NVIDIA = "NVIDIA data sheet, dense rates"
_TPU = "Google Cloud TPU documentation"

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("a100", "NVIDIA A100 SXM 80 GB", 312, None, 80, 2039, 300, _NVIDIA),
        Device("h100", "NVIDIA H100 SXM", 989.4, 1978.9, 80, 3350, 450, _NVIDIA),
        Device("h200", "NVIDIA H200 SXM", 989.4, 1978.9, 141, 4800, 450, _NVIDIA),
        Device("b200", "NVIDIA B200", 2250, 4500, 180, 8000, 900, _NVIDIA),
        Device("l4", "NVIDIA L4", 121, 242, 24, 300, 32, _NVIDIA),
        Device("l40s", "NVIDIA L40S", 362, 733, 48, 864, 32, _NVIDIA),
        Device("rtx4090", "NVIDIA GeForce RTX 4090", 165.2, 330.3, 24, 1008, 32, _NVIDIA),
        Device("mi300x", "AMD Instinct MI300X", 1307.4, 2614.9, 192, 5300, 448, "AMD data sheet, dense rates"),
        Device("tpu-v5e", "Google TPU v5e", 197, 394, 16, 819, 100, _TPU),
        Device("tpu-v5p", "Google TPU v5p", 459, 918, 95, 2765, 300, _TPU),
        Device("tpu-v6e", "Google TPU v6e", 918, 1836, 32, 1640, 200, _TPU),
    )
}
