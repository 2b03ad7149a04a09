"""What a pod holds of its node, by Kubernetes' rules: init containers, sidecars, overhead, GPU names, parts of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from pointsman.core.placement.resources import WHOLE_GPU_MILLI, Resources
from pointsman.edge.manifests.kubernetes_objects import Container, PodObject, Quantities, Requirements
from pointsman.edge.manifests.quantity import quantity, rounded_up

GPU_NAMES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
)
"""Resources that count whole accelerators."""
_OTHER_GPUS = re.compile(r"(gpu|mig-|cuda|accelerator)", re.IGNORECASE)
Amounts = dict[str, Fraction]
FRACTION = "gpu-fraction"
FRACTION_DEVICES = "gpu-fraction-num-devices"
GPU_MEMORY = "gpu-memory"
_MOST_DEVICES = 1024
_SIDECAR = "Always"


class AmountError(ValueError):
    """An amount can't be read; `path` says where in the object."""

    def __init__(self, path: tuple[str | int, ...], value: object, expected: str) -> None:
        super().__init__(f"expected {expected}, not {value!r}")
        self.path = path


def amounts(values: Quantities | None, path: tuple[str | int, ...]) -> Amounts:
    """Exact amounts by resource. Raises AmountError."""
    found = {}
    for name, value in (values or {}).items():
        try:
            found[name] = quantity(value)
        except ValueError:
            raise AmountError((*path, name), value, "a quantity such as 8, 500m or 64Gi") from None
    return found


def resources_of(values: Mapping[str, Fraction]) -> Resources:
    """GPUs whatever their maker, CPU, memory."""
    gpus = sum((values.get(name, Fraction(0)) for name in GPU_NAMES), Fraction(0))
    return Resources(
        rounded_up(gpus) * WHOLE_GPU_MILLI,
        rounded_up(values.get("cpu", Fraction(0)) * 1000),
        rounded_up(values.get("memory", Fraction(0))),
    )


def uncounted_gpus(names: Iterable[str]) -> set[str]:
    """Resources that look like GPUs, or slices of them, and are not counted."""
    return {name for name in names if name not in GPU_NAMES and "/" in name and _OTHER_GPUS.search(name)}


def requests_of(pod: PodObject) -> Amounts:
    """All that a pod asks for: the most it needs at any time of its life. Raises AmountError.

    Containers and sidecars run together; before that, each init container runs beside the sidecars that were started
    before it. What is set for the whole pod counts instead of the sum of its containers. Overhead comes on top.
    """
    spec = pod.spec
    running: Amounts = {}
    for number, container in enumerate(spec.containers):
        _add(running, _asked(container.resources, ("spec", "containers", number, "resources")))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for number, container in enumerate(spec.init_containers or []):
        asked = _asked(container.resources, ("spec", "initContainers", number, "resources"))
        if _is_sidecar(container):
            _add(sidecars, asked)
            now = sidecars
        else:
            now = dict(sidecars)
            _add(now, asked)
        _raise_to(peak, now)
    _add(running, sidecars)
    _raise_to(running, peak)
    running.update(_asked(spec.resources, ("spec", "resources")))
    _add(running, amounts(spec.overhead, ("spec", "overhead")))
    return running


def parts_of_gpus(pod: PodObject, gpu_memory_mib: int | None) -> tuple[int, ...]:
    """Thousandths of each device that it shares with others, by annotation; empty where it shares none.

    A part that is given in memory is a whole device where it is not known how much memory one has. Raises AmountError.
    """
    notes = pod.metadata.annotations or {}
    path = ("metadata", "annotations")
    if FRACTION in notes:
        part = _number(notes, FRACTION)
        if not 0 < part <= 1:
            raise AmountError((*path, FRACTION), notes[FRACTION], "a part of a GPU above 0, at most 1")
    elif GPU_MEMORY in notes:
        part = min(_number(notes, GPU_MEMORY) / gpu_memory_mib, Fraction(1)) if gpu_memory_mib else Fraction(1)
    else:
        return ()
    devices = _number(notes, FRACTION_DEVICES) if FRACTION_DEVICES in notes else Fraction(1)
    if devices.denominator != 1 or not 1 <= devices <= _MOST_DEVICES:
        raise AmountError((*path, FRACTION_DEVICES), notes[FRACTION_DEVICES], "a number of GPUs")
    return (max(1, rounded_up(part * WHOLE_GPU_MILLI)),) * int(devices)


def _number(notes: Mapping[str, str], name: str) -> Fraction:
    try:
        return quantity(notes[name])
    except ValueError:
        raise AmountError(("metadata", "annotations", name), notes[name], "a number") from None


def _asked(wanted: Requirements | None, path: tuple[str | int, ...]) -> Amounts:
    """Requests; a limit without a request is one."""
    if wanted is None:
        return {}
    return {**amounts(wanted.limits, (*path, "limits")), **amounts(wanted.requests, (*path, "requests"))}


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == _SIDECAR


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise_to(total: Amounts, other: Mapping[str, Fraction]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, Fraction(0)), amount)
