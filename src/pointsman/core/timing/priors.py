"""Measured step coefficients by model, GPU, engine and tensor parallelism: the table that profiles are made from.

Sources:
- `AIC`: non-negative least squares, weighted 1/TPOT, over the closed-loop measurements that AIConfigurator publishes
  (Apache-2.0), where TPOT = a + b·C + c·C·(I + O/2)/1000 + d·C·I/O; rows in saturation left out. Its model was
  measured with C of 4-352, so a 0 in b or c means that the other one took it in, not that there is no such effect.
- `DISTSERVE`: the published regression of DistServe on A100 (Apache-2.0), its decode regime below 95 sequences; the
  constant is that of decoding, which the one of prefill is within 2 ms of.
- `SPLITWISE`: the same kind of fit over Splitwise's published prompt and token times (MIT) on A100, 2023 software
  without CUDA graphs; prompts above 512 tokens were measured one at a time only. Token times fit within 3.5 %, prompt
  times within 16 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.timing.profile import Range, Validity
from pointsman.core.timing.step import StepCoefficients

AIC = "fit to AIConfigurator's measurements"
DISTSERVE = "regression published by DistServe"
SPLITWISE = "fit to Splitwise's measurements (2023 software)"


@dataclass(frozen=True, slots=True)
class Prior:
    """One measured engine."""

    name: str
    """`gpu/model[-precision][-tpN][-engine]`; what the first of its kind has is left out."""
    model: str
    """A name of `models.model_shape`."""
    precision: str
    """Of the weights."""
    gpu: str
    """A name of `gpus.gpu`."""
    engine: str
    tensor_parallel: int
    step: StepCoefficients
    mape: float | None
    """Percent."""
    valid: Validity
    source: str
    kv_tokens: int | None = None
    """Measured; None = by the formula."""


def _p(
    name: str,
    made_of: str,
    coefficients: tuple[float, ...],
    mape: float | None,
    valid: tuple[Range, Range, Range],
    source: str = AIC,
    kv_tokens: int | None = None,
) -> Prior:
    model, precision, gpu, engine, parallel = made_of.split()
    return Prior(
        name,
        model,
        precision,
        gpu,
        engine,
        int(parallel),
        StepCoefficients(*coefficients),
        mape,
        Validity(*valid),
        source,
        kv_tokens,
    )


# Prompts, answers, side by side.
_SHORT = ((1024, 4096), (128, 512), (8, 128))
_SHORT16 = ((1024, 4096), (128, 512), (16, 128))
_LONG = ((1024, 8192), (1024, 8192), (4, 64))
_LONG128 = ((1024, 8192), (1024, 8192), (4, 128))
_VLLM32B = ((1024, 4096), (128, 1024), (8, 128))
_OPT = ((1, 2048), (1, 2048), (1, 95))
_SPLITWISE = ((128, 8192), (128, 8192), (1, 64))

PRIORS = (
    _p("h100/llama-8b", "llama-8b bf16 h100 TensorRT-LLM 1", (6.42, 0, 0.0499, 0.0196), 1.8, _SHORT),
    _p("h100/llama-8b-tp2", "llama-8b bf16 h100 TensorRT-LLM 2", (4.42, 0.0040, 0.0246, 0.0121), 3.1, _SHORT),
    _p(
        "h200/llama-8b",
        "llama-8b fp8 h200 SGLang 1",
        (6.99, 0.0216, 0.0300, 0.0115),
        6.1,
        ((1000, 8000), (100, 2000), (20, 352)),
    ),
    _p(
        "h100/qwen3-32b-tp2",
        "qwen3-32b bf16 h100 vLLM 2",
        (13.83, 0.0483, 0.0633, 0.0485),
        2.6,
        _VLLM32B,
        AIC + "; KV pool as reported by llm-d for this set-up",
        307_328,
    ),
    _p("h100/qwen3-32b-tp4", "qwen3-32b bf16 h100 vLLM 4", (9.26, 0.0608, 0.0253, 0.0288), 1.8, _VLLM32B),
    _p("h100/qwen3-32b-tp8", "qwen3-32b bf16 h100 vLLM 8", (7.02, 0.0659, 0.0107, 0.0180), 2.1, _VLLM32B),
    _p("h100/qwen3-32b-tp2-sglang", "qwen3-32b bf16 h100 SGLang 2", (12.93, 0.0233, 0.0665, 0.0236), 2.7, _SHORT16),
    _p("h100/qwen3-32b-tp4-sglang", "qwen3-32b bf16 h100 SGLang 4", (8.39, 0.0178, 0.0376, 0.0146), 2.2, _SHORT16),
    _p("h100/qwen3-32b-fp8", "qwen3-32b fp8 h100 TensorRT-LLM 1", (13.48, 0.0802, 0.0355, 0.0686), 3.5, _SHORT),
    _p("h100/qwen3-32b-fp8-tp2", "qwen3-32b fp8 h100 TensorRT-LLM 2", (8.81, 0.0504, 0.0214, 0.0403), 3.4, _SHORT),
    _p("h100/qwen3-32b-fp8-tp4", "qwen3-32b fp8 h100 TensorRT-LLM 4", (6.42, 0.0596, 0.0061, 0.0240), 3.5, _SHORT),
    _p("h100/llama-70b-tp2", "llama-70b fp8 h100 vLLM 2", (16.53, 0.0394, 0.0586, 0.0700), 0.9, _LONG),
    _p("h100/llama-70b-tp4", "llama-70b fp8 h100 vLLM 4", (11.02, 0.0547, 0.0279, 0.0446), 2.2, _LONG),
    _p("h100/llama-70b-tp8", "llama-70b fp8 h100 vLLM 8", (8.82, 0.0630, 0.0115, 0.0298), 2.5, _LONG),
    _p("b200/llama-70b", "llama-70b fp8 b200 vLLM 1", (15.72, 0.0140, 0.0234, 0.0672), 1.1, _LONG),
    _p("b200/llama-70b-tp2", "llama-70b fp8 b200 vLLM 2", (9.97, 0.0323, 0.0099, 0.0459), 1.1, _LONG),
    _p("b200/llama-70b-trtllm", "llama-70b fp8 b200 TensorRT-LLM 1", (14.05, 0.0209, 0.0282, 0.0542), 0.9, _LONG128),
    _p("b200/llama-70b-tp4-trtllm", "llama-70b fp8 b200 TensorRT-LLM 4", (6.51, 0.0159, 0.0084, 0.0222), 1.2, _LONG128),
    _p("b200/llama-70b-fp4", "llama-70b fp4 b200 vLLM 1", (12.51, 0.0005, 0.0252, 0.0447), 1.5, _LONG),
    _p(
        "b200/llama-70b-fp4-trtllm", "llama-70b fp4 b200 TensorRT-LLM 1", (11.77, 0.0002, 0.0296, 0.0341), 0.7, _LONG128
    ),
    _p(
        "h100/qwen3-235b-tp4",
        "qwen3-235b fp8 h100 TensorRT-LLM 4",
        (14.10, 0.1440, 0.0110, 0.0375),
        6.5,
        ((128, 4000), (128, 1000), (4, 128)),
    ),
    _p(
        "h200/qwen3-235b-tp4",
        "qwen3-235b fp8 h200 vLLM 4",
        (19.15, 0.2332, 0.0611, 0.0314),
        1.3,
        ((1000, 8000), (100, 2000), (8, 48)),
    ),
    _p("h200/deepseek-r1-tp8", "deepseek-r1 fp8 h200 SGLang 8", (9.11, 0.3640, 0, 0.0384), 4.1, _LONG),
    _p(
        "h200/deepseek-r1-tp8-trtllm",
        "deepseek-r1 fp8 h200 TensorRT-LLM 8",
        (13.00, 0.3125, 0.0027, 0.0473),
        4.5,
        _LONG,
    ),
    _p("h200/minimax-m2.5-tp4", "minimax-m2.5 fp8 h200 vLLM 4", (11.61, 0.1905, 0.0127, 0.0283), 2.5, _LONG),
    _p("h200/minimax-m2.5-tp8", "minimax-m2.5 fp8 h200 vLLM 8", (8.00, 0.1180, 0.0013, 0.0175), 5.2, _LONG128),
    _p("h200/kimi-k2.5-tp8", "kimi-k2.5 int4 h200 vLLM 8", (9.21, 0.3143, 0.0114, 0.0463), 3.6, _LONG),
    _p("h200/glm-5-tp8", "glm-5 fp8 h200 SGLang 8", (16.84, 0.4129, 0.0056, 0.0938), 4.7, _LONG),
    _p("a100/opt-13b", "opt-13b bf16 a100 DistServe 1", (19.93, 0.0385, 0.627, 0.1019, 7.12e-6), None, _OPT, DISTSERVE),
    _p(
        "a100/opt-13b-tp2",
        "opt-13b bf16 a100 DistServe 2",
        (13.29, 0.0630, 0.341, 0.0686, 2.45e-6),
        None,
        _OPT,
        DISTSERVE,
    ),
    _p(
        "a100/opt-66b-tp4",
        "opt-66b bf16 a100 DistServe 4",
        (30.76, 0.0633, 0.452, 0.1514, 8.32e-6),
        None,
        _OPT,
        DISTSERVE,
    ),
    _p(
        "a100/llama2-70b-tp4",
        "llama2-70b bf16 a100 vLLM 4",
        (42.04, 0.0796, 0.6251, 0.1894, 9.17e-6),
        9.4,
        _SPLITWISE,
        SPLITWISE,
    ),
    _p(
        "a100/llama2-70b-tp8",
        "llama2-70b bf16 a100 vLLM 8",
        (42.38, 0.0459, 0.6766, 0.1186, 6.88e-6),
        9.5,
        _SPLITWISE,
        SPLITWISE,
    ),
)

ESTIMATED = (
    # Name, model, precision, GPU, tensor parallelism: nobody published step times for these, but fleets have them.
    ("a100/llama-8b", "llama-8b", "bf16", "a100", 1),
    ("a100/qwen3-32b-tp2", "qwen3-32b", "bf16", "a100", 2),
    ("a100/llama-70b-tp4", "llama-70b", "bf16", "a100", 4),
    ("l40s/llama-8b", "llama-8b", "bf16", "l40s", 1),
    ("rtx4090/llama-8b", "llama-8b", "bf16", "rtx4090", 1),
    ("rtxpro6000/llama-8b", "llama-8b", "bf16", "rtxpro6000", 1),
)
