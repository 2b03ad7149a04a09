"""Step times of engines that nobody measured, from what decides them: bytes moved, operations, layers.

```
a = launch·layers + weights·active bytes/(TP·bandwidth)          reading the weights once, and going through the layers
b = sampling  (dense)  or  experts·active bytes/(TP·bandwidth)   each sequence makes a mixture read further experts
c = cache·KV bytes·1000/(TP·bandwidth)                           latent attention: each GPU reads all of it
d = compute·2·active parameters/(TP·operations a second) + exchange·bytes between GPUs/(link)
```
Weights in milliseconds at the published peaks; the factors in front are fitted to the measured table, dense models and
mixtures apart. 8-bit weights are taken to compute 1.3 and 4-bit ones 2 times as fast as 16-bit ones where the GPU can.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.gpus import Gpu, gpu
from pointsman.core.timing.models import WEIGHT_BYTES, ModelShape, model_shape
from pointsman.core.timing.nonnegative import fit_nonnegative
from pointsman.core.timing.priors import AIC, PRIORS, Prior
from pointsman.core.timing.profile import Profile
from pointsman.core.timing.step import StepCoefficients

_COMPUTE_GAIN = {16: 1.0, 8: 1.3, 4: 2.0}
_PRECISION_BITS = {"bf16": 16, "fp8": 8, "fp4": 4, "int4": 16}
"""Bits that are multiplied; int4 weights are widened first."""
_KV_SHARE = 0.9
"""Of a GPU's memory that engines take by default, weights included."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors between published peaks and measured step times, of dense models or of mixtures of experts."""

    launch_ms_per_layer: float
    weights: float
    b_ms_per_sequence: float
    experts: float
    cache: float
    compute: float
    exchange: float


@dataclass(frozen=True, slots=True)
class _Work:
    """Milliseconds at the published peaks."""

    layers: float
    weights_ms: float
    cache_ms: float
    compute_ms: float
    exchange_ms: float


def _work(shape: ModelShape, precision: str, hardware: Gpu, tensor_parallel: int) -> _Work:
    bits = max(_PRECISION_BITS[precision], hardware.smallest_bits)
    bytes_per_ms = hardware.hbm_gb_per_s * 1e6
    operations_per_ms = hardware.bf16_tflops * 1e9 * _COMPUTE_GAIN[bits]
    # Two all-reduces a layer, of which each moves about two times a token's width of 16-bit numbers.
    exchanged_bytes = 8 * shape.layers * shape.width * (tensor_parallel - 1) / tensor_parallel
    return _Work(
        shape.layers,
        shape.active_parameters * WEIGHT_BYTES[precision] / tensor_parallel / bytes_per_ms,
        shape.kv_bytes_per_token * 1000 / (1 if shape.latent else tensor_parallel) / bytes_per_ms,
        2 * shape.active_parameters / tensor_parallel / operations_per_ms,
        exchanged_bytes / (hardware.peer_gb_per_s * 1e6),
    )


def fit_efficiency(rows: Sequence[Prior], *, mixture: bool) -> Efficiency:
    """The factors that fit measured rows of dense models, or of mixtures, best. At least two rows of the kind."""
    chosen = [row for row in rows if model_shape(row.model).mixture == mixture]
    if len(chosen) < 2:
        raise ConfigError(f"only {len(chosen)} measured rows to fit an estimate to; two are needed")
    works = [_work(model_shape(row.model), row.precision, gpu(row.gpu), row.tensor_parallel) for row in chosen]
    steps = [row.step for row in chosen]
    launch, weights = fit_nonnegative(
        np.array([(work.layers, work.weights_ms) for work in works]), np.array([step.a_ms for step in steps])
    )
    compute, exchange = fit_nonnegative(
        np.array([(work.compute_ms, work.exchange_ms) for work in works]),
        np.array([step.d_ms_per_prefill_token for step in steps]),
    )
    # Medians: b and c of a row stand for each other where the measured grid could not part them.
    b_values = [step.b_ms_per_sequence for step in steps]
    pairs = list(zip(steps, works, strict=True))
    return Efficiency(
        launch_ms_per_layer=float(launch),
        weights=float(weights),
        b_ms_per_sequence=0.0 if mixture else float(np.median(b_values)),
        experts=float(np.median([s.b_ms_per_sequence / w.weights_ms for s, w in pairs])) if mixture else 0.0,
        cache=float(np.median([s.c_ms_per_1000_context_tokens / w.cache_ms for s, w in pairs])),
        compute=float(compute),
        exchange=float(exchange),
    )


def estimated_step(
    shape: ModelShape, precision: str, hardware: Gpu, tensor_parallel: int, efficiency: Efficiency
) -> StepCoefficients:
    """Step coefficients by the formulas above."""
    work = _work(shape, precision, hardware, tensor_parallel)
    return StepCoefficients(
        efficiency.launch_ms_per_layer * work.layers + efficiency.weights * work.weights_ms,
        efficiency.b_ms_per_sequence + efficiency.experts * work.weights_ms,
        efficiency.cache * work.cache_ms,
        efficiency.compute * work.compute_ms + efficiency.exchange * work.exchange_ms,
    )


def fitted_rows() -> tuple[Prior, ...]:
    """Rows that the factors are fitted to: software of the same years."""
    return tuple(row for row in PRIORS if row.source.startswith(AIC))


@functools.cache
def _efficiency(mixture: bool) -> Efficiency:
    return fit_efficiency(fitted_rows(), mixture=mixture)


def kv_pool_tokens(shape: ModelShape, precision: str, hardware: Gpu, tensor_parallel: int) -> int:
    """KV tokens that fit beside the weights, in whole thousands; below 1,000 the model does not fit."""
    room = _KV_SHARE * hardware.memory_gb * 1e9 * tensor_parallel - shape.parameters * WEIGHT_BYTES[precision]
    held_by = tensor_parallel if shape.latent else 1
    return int(room / held_by / shape.kv_bytes_per_token) // 1000 * 1000


def estimate(
    shape: ModelShape,
    hardware: Gpu,
    *,
    precision: str = "bf16",
    tensor_parallel: int = 1,
    name: str | None = None,
) -> Profile:
    """A profile for a model on GPUs that nobody measured.

    Errors of the step time over the measured table, each model left out in turn: mean 12 % for one sequence, 17 % for
    32 over 128 k tokens, 25 % for prefill. ConfigError for a model that does not fit.
    """
    if precision not in WEIGHT_BYTES:
        raise ConfigError(f"precision {precision!r} is not known. Known: {', '.join(WEIGHT_BYTES)}")
    if tensor_parallel < 1:
        raise ConfigError(f"tensor parallelism must be at least 1, not {tensor_parallel}")
    kv_tokens = kv_pool_tokens(shape, precision, hardware, tensor_parallel)
    if kv_tokens < 1000:
        weights_gb = shape.parameters * WEIGHT_BYTES[precision] / 1e9
        raise ConfigError(
            f"{shape.name} {precision} ({weights_gb:,.0f} GB) leaves no room for KV on {tensor_parallel} x "
            f"{hardware.name} ({_KV_SHARE:.0%} of {hardware.memory_gb * tensor_parallel:,.0f} GB); raise tp, or take "
            "smaller weights or larger GPUs"
        )
    return Profile(
        name or f"estimate:{hardware.name},{shape.name},{precision},tp{tensor_parallel}",
        estimated_step(shape, precision, hardware, tensor_parallel, _efficiency(shape.mixture)),
        kv_tokens,
        shape.kv_bytes_per_token,
        hardware.name,
        f"{shape.name} {precision}",
        "estimate",
        tensor_parallel,
        f"not measured: estimated from {hardware.name}'s published bandwidth and operations, with factors fitted to "
        "measurements on H100, H200 and B200",
    )
