"""What makers publish of their accelerators. Peaks: what of it a model gets is fitted elsewhere."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bandwidths are one-way, in decimal GB/s; computing is dense, with sums in 32 bits."""

    name: str
    """As profiles write it, `H100`."""
    memory_gb: float
    hbm_gb_per_s: float
    """Its own memory, whatever its kind."""
    bf16_tflops: float
    smallest_bits: int
    """Narrowest numbers that it multiplies faster than 16-bit ones; 16 = none."""
    nvlink_gb_per_s: float
    """To GPUs of the same node; 0 = they talk over PCIe."""
    net_gb_per_s: float
    """To other nodes, a GPU, in the servers that are usual for it."""
    pcie_gb_per_s: float

    @property
    def peer_gb_per_s(self) -> float:
        """To another GPU of the node, over whatever there is."""
        return self.nvlink_gb_per_s or self.pcie_gb_per_s


# memory, HBM, bf16 TF, bits, NVLink, network, PCIe
_GPUS = {
    "a100": Gpu("A100", 80, 2_039, 312, 16, 300, 25, 32),
    "a100-40": Gpu("A100-40", 40, 1_555, 312, 16, 300, 25, 32),
    "h100": Gpu("H100", 80, 3_350, 989, 8, 450, 50, 64),
    "h200": Gpu("H200", 141, 4_800, 989, 8, 450, 50, 64),
    "b200": Gpu("B200", 180, 7_700, 2_250, 4, 900, 100, 128),
    "l4": Gpu("L4", 24, 300, 121, 8, 0, 12.5, 32),
    "l40s": Gpu("L40S", 48, 864, 362, 8, 0, 12.5, 32),
    "rtx4090": Gpu("RTX4090", 24, 1_008, 165.2, 8, 0, 2.5, 32),
    "rtx5090": Gpu("RTX5090", 32, 1_792, 209.5, 4, 0, 2.5, 64),
    "rtxpro6000": Gpu("RTXPRO6000", 96, 1_792, 503.8, 4, 0, 12.5, 64),
}
_ALIASES = {
    "a10080": "a100",
    "a10040": "a100-40",
    "h10080": "h100",
    "h200141": "h200",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "pro6000": "rtxpro6000",
}


# What is no part of a name: the maker, the form, the kind of memory, the edition. PCIe and NVL ones are other GPUs.
_AROUND = re.compile(r"nvidia|geforce|sxm\d?|hbm\de?|blackwell|(server|workstation)edition")


def gpu_names() -> tuple[str, ...]:
    """All known GPUs, as `gpu` takes them."""
    return tuple(_GPUS)


def gpu(name: str) -> Gpu:
    """The GPU of that name in any case, also as `nvidia-smi` writes it; ConfigError names the known ones."""
    key = _AROUND.sub("", re.sub(r"[ _-]", "", name.lower())).removesuffix("gb")
    found = _GPUS.get(_ALIASES.get(key, key))
    if found is None:
        near = difflib.get_close_matches(key, _GPUS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"GPU {name!r} is not known{hint} Known: {', '.join(_GPUS)}")
    return found
