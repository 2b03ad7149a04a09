"""Engine profiles by name, and estimates by what they are made of.

A text says which: `h100/llama-8b` is a row of the table in `priors`, `estimate:gpu=l40s,params=14b,tp=2` is computed.
Where no measured KV pool is known, its size is `(0.9 * memory * TP - weight bytes) / KV bytes`, which gives 299 k
tokens where 307 k are reported (Qwen3-32B on two H100), and 42 k where 41,408 are (Llama-3.1-8B on an RTX 4090).
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.estimate import estimate, kv_pool_tokens
from pointsman.core.timing.gpus import gpu
from pointsman.core.timing.models import WEIGHT_BYTES, ModelShape, model_shape, usual_shape
from pointsman.core.timing.priors import ESTIMATED, PRIORS, Prior
from pointsman.core.timing.profile import Profile, Range, Validity
from pointsman.core.timing.step import StepCoefficients

__all__ = ["ESTIMATE_PREFIX", "Profile", "Range", "Validity", "profile", "profile_from", "profile_names"]

ESTIMATE_PREFIX = "estimate:"
ESTIMATE_USAGE = (
    "estimate:gpu=h100,params=8b[,active=3b][,precision=bf16|fp8|fp4|int4][,tp=1][,layers=32][,kv_bytes=131072] "
    "or estimate:gpu=h100,model=llama-8b[,precision=…][,tp=…]"
)
_KEYS = ("gpu", "model", "params", "active", "precision", "tp", "layers", "kv_bytes")

_BY_HAND = (
    Profile(
        "instant",
        StepCoefficients(0, 0, 0, 0),
        1_048_576,
        131_072,
        "none",
        "none",
        "none",
        1,
        "no time passes at all",
    ),
    Profile(
        "tiny",
        StepCoefficients(23.8, 1.86, 0.5, 1.5),
        32_768,
        23_040,
        "2 CPU cores",
        "SmolLM2-135M bf16",
        "vLLM",
        1,
        "measured on a 2-core CPU: 39 tok/s at 1 sequence, 207 at 8, prompts of 512 and 2,048 tokens in 715 and 4,450 "
        "ms; c is a guess, and d lies between the two prompts",
        valid=Validity((16, 512), (16, 128), (1, 8)),
    ),
)


def _measured(row: Prior) -> Profile:
    shape, hardware = model_shape(row.model), gpu(row.gpu)
    return Profile(
        row.name,
        row.step,
        row.kv_tokens or kv_pool_tokens(shape, row.precision, hardware, row.tensor_parallel),
        shape.kv_bytes_per_token,
        hardware.name,
        f"{shape.name} {row.precision}",
        row.engine,
        row.tensor_parallel,
        row.source,
        row.mape,
        row.valid,
    )


@functools.cache
def _by_name() -> dict[str, Profile]:
    estimates = (
        estimate(model_shape(model), gpu(hardware), precision=precision, tensor_parallel=parallel, name=name)
        for name, model, precision, hardware, parallel in ESTIMATED
    )
    return {found.name: found for found in (*_BY_HAND, *map(_measured, PRIORS), *estimates)}


def profile_names() -> tuple[str, ...]:
    """All known names."""
    return tuple(_by_name())


def profile(name: str) -> Profile:
    """The profile of that name; `ConfigError` names the known ones."""
    found = _by_name().get(name)
    if found is None:
        near = difflib.get_close_matches(name, _by_name(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"profile {name!r} is not known{hint} Known: {', '.join(_by_name())}")
    return found


def profile_from(text: str) -> Profile:
    """The profile that a text names: one of the table, or `estimate:key=value,…`. ConfigError says what is wrong."""
    if not text.startswith(ESTIMATE_PREFIX):
        return profile(text)
    values = _pairs(text)
    if "gpu" not in values or ("model" in values) == ("params" in values):
        raise ConfigError(f"{text!r}: gpu and one of model and params are needed: {ESTIMATE_USAGE}")
    precision = values.get("precision", "bf16")
    if precision not in WEIGHT_BYTES:
        raise ConfigError(f"{text!r}: precision {precision!r} is not known. Known: {', '.join(WEIGHT_BYTES)}")
    return estimate(
        _shape(text, values),
        gpu(values["gpu"]),
        precision=precision,
        tensor_parallel=_whole(text, values, "tp") or 1,
        name=text,
    )


def _pairs(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in text.removeprefix(ESTIMATE_PREFIX).split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"{text!r}: {part!r} is not key=value: {ESTIMATE_USAGE}")
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"{text!r}: {key!r} is not known{hint} Known: {', '.join(_KEYS)}")
        if key in values:
            raise ConfigError(f"{text!r}: {key} is given twice")
        values[key] = value
    return values


def _shape(text: str, values: Mapping[str, str]) -> ModelShape:
    if "model" in values:
        further = [key for key in ("active", "layers", "kv_bytes") if key in values]
        if further:
            raise ConfigError(f"{text!r}: {', '.join(further)} go with params=, a named model has its own")
        return model_shape(values["model"])
    return usual_shape(
        _parameters(text, "params", values["params"]),
        _parameters(text, "active", values["active"]) if "active" in values else None,
        _whole(text, values, "layers"),
        _whole(text, values, "kv_bytes"),
    )


def _parameters(text: str, key: str, value: str) -> float:
    """`8b`, `0.6b`, `135m`, `1t`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mbt])", value.lower())
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"{text!r}: {key} must be a number with m, b or t (8b, 0.6b, 135m), not {value!r}")
    return float(found[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[found[2]]


def _whole(text: str, values: Mapping[str, str], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,9}", value):
        raise ConfigError(f"{text!r}: {key} must be a whole number of at least 1, not {value!r}")
    return int(value)
