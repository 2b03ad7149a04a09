"""Named engine profiles: step coefficients and KV size of a model on a GPU, engine and tensor-parallel size.

Coefficients are least-squares fits to public benchmark tables (measurements of AIConfigurator; mean error 1-7 %).
KV bytes per token = 2 * layers * KV heads * head size * 2 bytes (for latent attention: layers * (latent + rope) * 2).
Where no measured KV pool is known, its size is `(0.9 * HBM * TP - weight bytes) / KV bytes`, which gives 299 k tokens
where 307 k are reported (Qwen3-32B on two H100).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients


@dataclass(frozen=True, slots=True)
class Profile:
    """Speed and KV size of one engine."""

    name: str
    step: StepCoefficients
    kv_tokens: int
    """Tokens that the KV cache holds."""
    kv_bytes_per_token: int
    gpu: str
    model: str
    engine: str
    tensor_parallel: int
    source: str
    """Where the coefficients come from."""

    def num_blocks(self, block_size: int) -> int:
        """KV blocks of `block_size` tokens."""
        return max(1, self.kv_tokens // block_size)


_FIT = "fit to AIConfigurator's measurements"
_LLAMA_8B_BYTES, _LLAMA_70B_BYTES, _QWEN_32B_BYTES, _QWEN_235B_BYTES = 131_072, 327_680, 262_144, 192_512
# Latent attention: each GPU keeps the whole latent, so tensor parallelism does not multiply the pool.
_DEEPSEEK_BYTES = 70_300


def _profile(
    name: str,
    coefficients: tuple[float, float, float, float],
    kv_tokens: int,
    kv_bytes: int,
    hardware: tuple[str, str, str, int],
    source: str = _FIT,
) -> Profile:
    gpu, model, engine, parallel = hardware
    return Profile(name, StepCoefficients(*coefficients), kv_tokens, kv_bytes, gpu, model, engine, parallel, source)


_ALL = (
    _profile("instant", (0, 0, 0, 0), 1_048_576, 131_072, ("none", "none", "none", 1), "no time passes at all"),
    _profile(
        "tiny",
        (23.8, 1.86, 0.5, 1.5),
        32_768,
        23_040,
        ("2 CPU cores", "SmolLM2-135M bf16", "vLLM", 1),
        "39 tok/s at 1 sequence, 207 at 8, a 512-token prompt in 715 ms, measured on a 2-core CPU",
    ),
    _profile(
        "h100/llama-8b",
        (6.42, 0, 0.0499, 0.0196),
        426_000,
        _LLAMA_8B_BYTES,
        ("H100", "Llama-3.1-8B bf16", "TensorRT-LLM", 1),
    ),
    _profile(
        "h100/qwen3-32b-tp2",
        (13.83, 0.0483, 0.0633, 0.0485),
        307_328,
        _QWEN_32B_BYTES,
        ("H100", "Qwen3-32B bf16", "vLLM", 2),
        _FIT + "; KV pool as reported by llm-d for this set-up",
    ),
    _profile(
        "h100/qwen3-32b-tp4",
        (9.26, 0.0608, 0.0253, 0.0288),
        848_000,
        _QWEN_32B_BYTES,
        ("H100", "Qwen3-32B bf16", "vLLM", 4),
    ),
    _profile(
        "h100/llama-70b-tp4",
        (11.02, 0.0547, 0.0279, 0.0446),
        663_000,
        _LLAMA_70B_BYTES,
        ("H100", "Llama-3.1-70B fp8", "vLLM", 4),
    ),
    _profile(
        "h200/llama-8b",
        (6.99, 0.0216, 0.0300, 0.0115),
        907_000,
        _LLAMA_8B_BYTES,
        ("H200", "Llama-3.1-8B fp8", "SGLang", 1),
    ),
    _profile(
        "h200/qwen3-235b-tp4",
        (19.15, 0.2332, 0.0611, 0.0314),
        1_416_000,
        _QWEN_235B_BYTES,
        ("H200", "Qwen3-235B-A22B fp8", "vLLM", 4),
    ),
    _profile(
        "h200/deepseek-r1-tp8",
        (9.11, 0.3640, 0, 0.0384),
        611_000,
        _DEEPSEEK_BYTES,
        ("H200", "DeepSeek-R1 fp8", "SGLang", 8),
    ),
    _profile(
        "b200/llama-70b",
        (15.72, 0.0140, 0.0234, 0.0672),
        279_000,
        _LLAMA_70B_BYTES,
        ("B200", "Llama-3.1-70B fp8", "vLLM", 1),
    ),
    _profile(
        "b200/llama-70b-tp2",
        (9.97, 0.0323, 0.0099, 0.0459),
        773_000,
        _LLAMA_70B_BYTES,
        ("B200", "Llama-3.1-70B fp8", "vLLM", 2),
    ),
)
_BY_NAME = {profile.name: profile for profile in _ALL}


def profile_names() -> tuple[str, ...]:
    """All known names."""
    return tuple(_BY_NAME)


def profile(name: str) -> Profile:
    """The profile of that name; `ConfigError` names the known ones."""
    found = _BY_NAME.get(name)
    if found is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"profile {name!r} is not known{hint} Known: {', '.join(_BY_NAME)}")
    return found
