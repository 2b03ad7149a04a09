"""The page of the time model shows the profiles and the fitted factors as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.timing.estimate import fit_efficiency, fitted_rows
from pointsman.core.timing.gpus import gpu, gpu_names
from pointsman.core.timing.profiles import profile, profile_names

PAGE = (Path(__file__).parents[2] / "docs" / "time-model.md").read_text()


def profile_row(name: str) -> str:
    found = profile(name)
    step = found.step
    numbers = (
        step.a_ms,
        step.b_ms_per_sequence,
        step.c_ms_per_1000_context_tokens,
        step.d_ms_per_prefill_token,
    )
    cells = [f"`{name}`", found.model, found.engine, *(f"{value:.4g}" for value in numbers)]
    cells.append(f"{step.q_ms_per_square_token:.2e}" if step.q_ms_per_square_token else "")
    cells.append(f"{found.kv_tokens:,}")
    cells.append("" if found.mape is None else f"{found.mape:g}")
    cells.append("" if found.valid is None else str(found.valid))
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", profile_names())
def test_each_profile_is_in_the_table(name: str) -> None:
    assert profile_row(name) in PAGE


@pytest.mark.parametrize("name", gpu_names())
def test_each_gpu_is_in_the_table(name: str) -> None:
    found = gpu(name)
    nvlink = f"{found.nvlink_gb_per_s:g}" if found.nvlink_gb_per_s else "–"
    row = (
        f"| `{name}` | {found.memory_gb:g} | {found.hbm_gb_per_s:,.0f} | {found.bf16_tflops:,g} | "
        f"{found.smallest_bits} | {nvlink} | {found.net_gb_per_s:g} | {found.pcie_gb_per_s:g} |"
    )
    assert row in PAGE


@pytest.mark.parametrize("mixture", [False, True])
def test_the_fitted_factors_are_those_of_the_table(mixture: bool) -> None:
    found = fit_efficiency(fitted_rows(), mixture=mixture)
    b = f"{found.experts:.2f} · weights" if mixture else f"{found.b_ms_per_sequence:.3f} ms"
    row = (
        f"| {'mixture of experts' if mixture else 'dense'} | {found.launch_ms_per_layer:.3f} ms a layer | "
        f"{found.weights:.2f} | {b} | {found.cache:.2f} | {found.compute:.2f} | {found.exchange:.2f} |"
    )
    assert row in PAGE
