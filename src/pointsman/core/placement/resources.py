"""Resources: what a pod asks for, and what a node has: GPUs in thousandths, CPU in thousandths, memory in bytes."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts; none is negative. Raises ValueError otherwise."""

    gpu_milli: int = 0
    """1000 is one whole GPU. What one pod asks for is below 1000 (a part of *one* device) or a multiple of it."""
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("gpu_milli", "cpu_milli", "memory_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; 0 or more is expected")

    @property
    def gpus(self) -> float:
        """GPUs as people count them."""
        return self.gpu_milli / WHOLE_GPU_MILLI

    @property
    def whole_gpus(self) -> int:
        """Devices that are taken whole."""
        return self.gpu_milli // WHOLE_GPU_MILLI

    @property
    def device_share_milli(self) -> int:
        """The part of one device, 0 where devices are taken whole."""
        return self.gpu_milli % WHOLE_GPU_MILLI

    @property
    def fits_devices(self) -> bool:
        """Whether one pod may ask for it: a part of one device, or whole devices, not both."""
        return self.gpu_milli < WHOLE_GPU_MILLI or self.gpu_milli % WHOLE_GPU_MILLI == 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.gpu_milli + other.gpu_milli,
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
        )

    def times(self, count: int) -> Resources:
        """So many of them together."""
        return Resources(self.gpu_milli * count, self.cpu_milli * count, self.memory_bytes * count)


NOTHING = Resources()


def shown(amount: float) -> str:
    """For people, to the thousandth and without exponents: 0.5, 96, 1,228,800."""
    return f"{round(amount, 3):,.15g}"


def shown_gib(memory_bytes: int) -> str:
    """For people: 0.5 GiB, 64.3 GiB, 1,024 GiB."""
    gib = memory_bytes / 2**30
    return f"{round(gib, 1) if gib >= 1 else round(gib, 3):,.15g} GiB"
