"""How busy GPUs are, from the pages of dcgm-exporter and nvidia_gpu_exporter."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.http import EngineCallError, Trouble
from pointsman.edge.engines.prometheus_text import Sample

_PERCENT = "DCGM_FI_DEV_GPU_UTIL"
_DCGM_SHARE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
"""Also where a GPU is cut into instances, of which the first one tells nothing."""
_SMI_SHARE = "nvidia_smi_utilization_gpu_ratio"
_SMI_INDEX = "nvidia_smi_index"
_NAMES = (_PERCENT, _DCGM_SHARE, _SMI_SHARE, _SMI_INDEX)
_SHOWN = 16


def gpu_use(text: str, gpus: Sequence[str] | None = None) -> float:
    """Mean busy share, 0 to 1, of these GPUs (numbers or UUIDs), or of all on the page.

    Raises EngineCallError where the page tells nothing of one of them.
    """
    samples = prometheus.select(text, _NAMES)
    numbers = {_bare(s.labels.get("uuid", "")): str(int(s.value)) for s in samples.named(_SMI_INDEX) if _whole(s.value)}
    shares: dict[str, list[float]] = {}
    names: dict[str, str] = {}
    for sample, share in _shares(samples):
        uuid = _bare(sample.labels.get("UUID") or sample.labels.get("uuid") or "")
        number = sample.labels.get("gpu") or numbers.get(uuid) or ""
        gpu = uuid or number
        shares.setdefault(gpu, []).append(share)
        names.update({name: gpu for name in (uuid, number) if name})
    if not shares:
        raise EngineCallError(Trouble.MALFORMED, f"the page has no usable {_PERCENT}, {_DCGM_SHARE} or {_SMI_SHARE}")
    wanted = shares if gpus is None else [_known(gpu, names) for gpu in gpus]
    means = [sum(shares[gpu]) / len(shares[gpu]) for gpu in wanted]
    return sum(means) / len(means)


def _shares(samples: prometheus.Samples) -> list[tuple[Sample, float]]:
    for name, whole in ((_PERCENT, 100.0), (_DCGM_SHARE, 1.0), (_SMI_SHARE, 1.0)):
        found = [(s, min(1.0, s.value / whole)) for s in samples.named(name) if math.isfinite(s.value) and s.value >= 0]
        if found:
            return found
    return []


def _known(gpu: str, names: dict[str, str]) -> str:
    found = names.get(_bare(gpu))
    if found is None:
        there = ", ".join(sorted(names)[:_SHOWN])
        raise EngineCallError(Trouble.MALFORMED, f"the page tells nothing of GPU {gpu}; it tells of {there}")
    return found


def _bare(uuid: str) -> str:
    """Some exporters leave out the prefix."""
    return uuid.lower().removeprefix("gpu-")


def _whole(value: float) -> bool:
    return math.isfinite(value) and value >= 0
