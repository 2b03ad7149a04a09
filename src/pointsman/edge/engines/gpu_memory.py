"""How much of their memory GPUs use, from the pages of dcgm-exporter and nvidia_gpu_exporter, where these tell it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.prometheus_text import Samples

_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_SMI_USED, _SMI_TOTAL = "nvidia_smi_memory_used_bytes", "nvidia_smi_memory_total_bytes"
_SMI_INDEX = "nvidia_smi_index"
_NAMES = (_USED, _FREE, _RESERVED, _SMI_USED, _SMI_TOTAL, _SMI_INDEX)


def gpu_memory(text: str, gpus: Sequence[str] | None = None) -> float | None:
    """Share of memory used, 0 to 1, of these GPUs (numbers or UUIDs) together, or of all on the page.

    None where the page does not tell it of all of them: that is no fault, as exporters leave it out at will. Raises
    EngineCallError where the page is no metrics at all.
    """
    samples = prometheus.select(text, _NAMES)
    names: dict[str, str] = {}
    used = _by_gpu(samples, (_USED,), names) or _by_gpu(samples, (_SMI_USED,), names)
    # What the driver reserved is in neither; it is not free.
    whole = _by_gpu(samples, (_USED, _FREE, _RESERVED), names) if samples.named(_FREE) else {}
    whole = whole or _by_gpu(samples, (_SMI_TOTAL,), names)
    for sample in samples.named(_SMI_INDEX):
        if math.isfinite(sample.value):
            names[str(int(sample.value))] = _bare(sample.labels.get("uuid", ""))
    wanted = list(used) if gpus is None else [names.get(_bare(gpu), _bare(gpu)) for gpu in gpus]
    if not wanted or any(used.get(gpu) is None or not whole.get(gpu) for gpu in wanted):
        return None
    return min(1.0, sum(used[gpu] for gpu in wanted) / sum(whole[gpu] for gpu in wanted))


def _by_gpu(samples: Samples, metrics: Sequence[str], names: dict[str, str]) -> Mapping[str, float]:
    """Sums by UUID, or by number where there is none; parts of a GPU that is cut up add up to it."""
    sums: defaultdict[str, float] = defaultdict(float)
    for metric in metrics:
        for sample in samples.named(metric):
            uuid = _bare(sample.labels.get("UUID") or sample.labels.get("uuid") or "")
            number = sample.labels.get("gpu", "")
            gpu = uuid or number
            if not gpu or not math.isfinite(sample.value) or sample.value < 0:
                continue
            names.update({name: gpu for name in (uuid, number) if name})
            sums[gpu] += sample.value
    return sums


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")
