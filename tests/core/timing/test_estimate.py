from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.estimate import estimate, estimated_step, fit_efficiency, fitted_rows
from pointsman.core.timing.gpus import gpu, gpu_names
from pointsman.core.timing.models import ModelShape, model_shape, usual_shape
from pointsman.core.timing.profiles import profile

# Decodes, their KV tokens, prefill tokens.
BATCHES = {"one sequence": (1, 4_000, 0), "32 sequences": (32, 128_000, 0), "prefill": (0, 0, 8_192)}


def left_out_errors() -> dict[str, float]:
    """Mean relative error of the estimated step, when no row of the estimated model is fitted to."""
    errors: dict[str, list[float]] = {name: [] for name in BATCHES}
    rows = fitted_rows()
    for row in rows:
        shape = model_shape(row.model)
        others = [other for other in rows if other.model != row.model]
        efficiency = fit_efficiency(others, mixture=shape.mixture)
        guess = estimated_step(shape, row.precision, gpu(row.gpu), row.tensor_parallel, efficiency)
        for name, batch in BATCHES.items():
            errors[name].append(abs(guess.step_ms(*batch) / row.step.step_ms(*batch) - 1))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def test_the_error_with_each_model_left_out_is_what_is_stated() -> None:
    errors = left_out_errors()
    assert errors["one sequence"] == pytest.approx(0.12, abs=0.01)
    assert errors["32 sequences"] == pytest.approx(0.17, abs=0.01)
    assert errors["prefill"] == pytest.approx(0.25, abs=0.01)


def test_a_smaller_gpu_is_slower_by_its_bandwidth_and_its_operations() -> None:
    fast, slow = profile("a100/llama-8b").step, profile("rtx4090/llama-8b").step
    assert slow.c_ms_per_1000_context_tokens / fast.c_ms_per_1000_context_tokens == pytest.approx(2039 / 1008)
    assert 1.7 < slow.a_ms / fast.a_ms < 2039 / 1008
    # 165 TF against 312.
    assert slow.d_ms_per_prefill_token / fast.d_ms_per_prefill_token == pytest.approx(312 / 165.2)
    # Prefill of Mistral-7B on A100 is published as 0.0503 ms a token (Preble).
    assert fast.d_ms_per_prefill_token == pytest.approx(0.0503 * 8.03 / 7.25, rel=0.05)


@pytest.mark.parametrize("name", gpu_names())
def test_each_gpu_has_an_estimate_and_more_of_them_are_faster(name: str) -> None:
    shape = usual_shape(1e9)
    one, two = estimate(shape, gpu(name)), estimate(shape, gpu(name), tensor_parallel=2)
    assert two.step.step_ms(8, 8_000, 0) < one.step.step_ms(8, 8_000, 0)
    assert two.kv_tokens > 2 * one.kv_tokens
    assert "not measured" in one.source


def test_the_usual_shape_goes_through_known_models() -> None:
    for name in ("llama-8b", "qwen3-32b", "llama-70b"):
        known = model_shape(name)
        usual = usual_shape(known.parameters)
        assert usual.layers == pytest.approx(known.layers, rel=0.1)
        assert usual.kv_bytes_per_token == pytest.approx(known.kv_bytes_per_token, rel=0.1)


def test_narrow_weights_save_memory_everywhere_and_time_where_the_gpu_can() -> None:
    shape = model_shape("llama-8b")
    wide, narrow = estimate(shape, gpu("a100")), estimate(shape, gpu("a100"), precision="fp8")
    assert narrow.kv_tokens > wide.kv_tokens
    assert narrow.step.a_ms < wide.step.a_ms
    assert narrow.step.d_ms_per_prefill_token == wide.step.d_ms_per_prefill_token
    on_h100 = estimate(shape, gpu("h100")), estimate(shape, gpu("h100"), precision="fp8")
    assert on_h100[1].step.d_ms_per_prefill_token < on_h100[0].step.d_ms_per_prefill_token


def test_a_latent_is_kept_whole_on_each_gpu() -> None:
    shape, hardware = model_shape("deepseek-r1"), gpu("h200")
    eight, sixteen = (estimate(shape, hardware, precision="fp8", tensor_parallel=count) for count in (8, 16))
    assert sixteen.step.c_ms_per_1000_context_tokens == eight.step.c_ms_per_1000_context_tokens
    # Twice the GPUs hold the weights once, so each has more room; but none of it counts twice.
    assert 611_000 <= eight.kv_tokens <= 613_000
    assert sixteen.kv_tokens < 2 * 0.9 * 141e9 / shape.kv_bytes_per_token


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Llama-3.1-70B bf16 \(141 GB\) leaves no room for KV on 1 x H100"):
        estimate(model_shape("llama-70b"), gpu("h100"))
    with pytest.raises(ConfigError, match="precision 'fp32' is not known"):
        estimate(model_shape("llama-8b"), gpu("h100"), precision="fp32")
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        estimate(model_shape("llama-8b"), gpu("h100"), tensor_parallel=0)
    with pytest.raises(ConfigError, match="only 0 measured rows"):
        fit_efficiency([], mixture=False)
    with pytest.raises(ConfigError, match="at most all"):
        usual_shape(8e9, 9e9)
    with pytest.raises(ConfigError, match="layers and KV bytes"):
        ModelShape("m", 1e9, 1e9, 0, 1)
    with pytest.raises(ConfigError, match=r"'h1000' is not known; did you mean 'h100'\?"):
        gpu("h1000")
    with pytest.raises(ConfigError, match=r"'llama-8' is not known; did you mean 'llama-8b'\?"):
        model_shape("llama-8")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100-SXM5-80GB", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
    ],
)
def test_gpus_are_found_as_nvidia_smi_names_them(text: str, name: str) -> None:
    assert gpu(text).name == name


@pytest.mark.parametrize("text", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100 80GB PCIe"])
def test_a_slower_kind_is_not_taken_for_the_faster_one(text: str) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        gpu(text)


@pytest.mark.parametrize(
    "text", ["NVIDIA H100", "h100", "H100", "a100_80gb", "A100-40GB", "RTX 4090", "4090", *gpu_names()]
)
def test_gpus_are_found_however_they_are_written(text: str) -> None:
    assert gpu(text).memory_gb > 0
