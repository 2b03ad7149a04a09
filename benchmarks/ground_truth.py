"""Calibration and simulator against recorded vLLM runs: fitted to the first 60 requests, judged on the others.

The fit sees lengths, prefixes and times of the first requests of a run and nothing else: no later request, no load over
time. Then the whole run is simulated with the fitted step times and the run's engine settings. Beside it stands the
profile that is estimated from the GPU's published figures, without any measurement.

Recorded by LLMServingSim (casys-kaist/LLMServingSim, MIT): vLLM 0.19, Llama-3.1-8B, 300 ShareGPT requests at 10/s, on
an RTX 4090, which is far overloaded and preempts, and an RTX PRO 6000, which is overloaded.

usage: scripts/bench ground_truth [--quick]   (needs POINTSMAN_DATA)
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from harness import report
from harness.command import carry_out
from harness.data import data_file
from harness.processes import BenchmarkError
from pointsman.app.calibration.fit import Solution, fit
from pointsman.app.calibration.measurement import measurements
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.model.errors import PointsmanError
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.timing.profile import Profile
from pointsman.core.timing.profiles import profile_from
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.loaded import LoadedTrace

RUNS = {
    "RTX 4090": ("RTX4090", "estimate:gpu=rtx4090,model=llama-8b"),
    "RTX PRO 6000": ("RTXPRO6000", "estimate:gpu=rtxpro6000,model=llama-8b"),
}
WORKLOAD = "sharegpt-llama-3.1-8b-300-sps10.jsonl"
BARS = {"E2E": 8.0, "TPOT": 5.0, "TTFT": 20.0}
"""Percent, for the mean, P50 and P90 each."""
FIGURES = ("mean", "P50", "P90")
_BLOCK_TOKENS = 16
_FOLDER, _MODEL = "vllm-ground-truth", "Llama-3.1-8B"

Floats = npt.NDArray[np.float64]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    seen_requests: int = 60
    runs: tuple[str, ...] = tuple(RUNS)


class _EngineKwargs(msgspec.Struct):
    max_num_seqs: int
    max_num_batched_tokens: int


class _KvCache(msgspec.Struct):
    num_kv_tokens: int | None = None


class _Meta(msgspec.Struct):
    engine_kwargs: _EngineKwargs
    kv_cache: _KvCache | None = None


def measure(options: Options) -> dict[str, Any]:
    """Errors of each run."""
    workload = read_trace(data_file(f"{_FOLDER}/workloads/{WORKLOAD}")).trace
    return {"runs": {name: _run(*RUNS[name], workload, options.seen_requests) for name in options.runs}}


def _run(folder: str, estimate: str, workload: Trace, seen: int) -> dict[str, Any]:
    meta = msgspec.json.decode(data_file(f"{_FOLDER}/{folder}/{_MODEL}/meta.json").read_bytes(), type=_Meta)
    file = data_file(f"{_FOLDER}/{folder}/{_MODEL}/requests.jsonl")
    estimated = profile_from(estimate)
    told = meta.kv_cache and meta.kv_cache.num_kv_tokens
    profile = replace(estimated, kv_tokens=told or estimated.kv_tokens)
    solution = _fitted(file, workload, seen, profile, meta.engine_kwargs)
    whole = read_trace(file)
    fitted = replace(profile, step=solution.parameters.step)
    step = solution.parameters.step
    return {
        "coefficients": dict(zip("abcd", msgspec.to_builtins(step).values(), strict=False)),
        "kv_tokens": profile.kv_tokens,
        "schedules_ahead": solution.ahead,
        "measured_ms": {name: _figures(values[seen:]) for name, values in _measured(whole).items()},
        "calibrated_error_percent": _errors(whole, workload, seen, fitted, meta.engine_kwargs),
        "uncalibrated_error_percent": _errors(whole, workload, seen, profile, meta.engine_kwargs),
    }


def _fitted(file: Path, workload: Trace, seen: int, profile: Profile, settings: _EngineKwargs) -> Solution:
    with tempfile.TemporaryDirectory() as folder, file.open("rb") as lines:
        beginning = Path(folder) / "requests.jsonl"
        beginning.write_bytes(b"".join(itertools.islice(lines, seen)))
        loaded = read_trace(beginning)
    prefixes = Trace(workload.name, workload.requests[:seen], workload.block_tokens, workload.source)
    blocks = profile.num_blocks(_BLOCK_TOKENS)
    engine = EngineConfig(
        step=profile.step,
        num_blocks=blocks,
        block_size=_BLOCK_TOKENS,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=blocks * _BLOCK_TOKENS,
    )
    return fit(measurements(loaded, more_followed=True, prefixes=prefixes), engine)


def _errors(
    whole: LoadedTrace, workload: Trace, seen: int, profile: Profile, settings: _EngineKwargs
) -> dict[str, list[float]]:
    """Signed errors of mean, P50 and P90 over the requests that the fit has not seen."""
    requests = tuple(
        replace(asked, at_ms=came.at_ms) for asked, came in zip(workload.requests, whole.trace.requests, strict=True)
    )
    setup = Setup(
        groups=(WorkerGroup(profile, 1),),
        block_tokens=_BLOCK_TOKENS,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_num_batched_tokens,
    )
    outcome = simulate(Trace(workload.name, requests, workload.block_tokens), setup, RoundRobin())
    simulated = {"TTFT": outcome.ttft_ms, "TPOT": outcome.tpot_ms, "E2E": outcome.e2e_ms}
    measured = _measured(whole)
    return {
        name: [
            round(100 * (ours / theirs - 1), 2)
            for ours, theirs in zip(_figures(simulated[name][seen:]), _figures(measured[name][seen:]), strict=True)
        ]
        for name in BARS
    }


def _measured(whole: LoadedTrace) -> dict[str, Floats]:
    seen = whole.observed
    return {
        "TTFT": np.array([one.ttft_ms for one in seen], dtype=np.float64),
        "TPOT": np.array([one.tpot_ms for one in seen], dtype=np.float64),
        "E2E": np.array([one.e2e_ms for one in seen], dtype=np.float64),
    }


def _figures(values: Floats) -> list[float]:
    return [float(values.mean()), *np.percentile(values, [50, 90]).tolist()]


def markdown(results: dict[str, Any]) -> str:
    """The table of the page."""
    rows, coefficients = [], []
    for run, found in results["runs"].items():
        for name, bar in BARS.items():
            calibrated = found["calibrated_error_percent"][name]
            verdict = "reached" if max(map(abs, calibrated)) <= bar else "**not reached**"
            rows.append(
                [
                    f"{run} {name}",
                    *(report.number(value) for value in found["measured_ms"][name]),
                    *(f"{value:+.1f}" for value in calibrated),
                    f"≤ {bar:g}",
                    verdict,
                    *(f"{value:+.1f}" for value in found["uncalibrated_error_percent"][name]),
                ]
            )
        coefficients.append([run, *(f"{value:.4g}" for value in found["coefficients"].values())])
    header = ["", *(f"measured {figure}, ms" for figure in FIGURES), *(f"{figure}, %" for figure in FIGURES)]
    header += ["bar", "verdict", *(f"uncalibrated {figure}, %" for figure in FIGURES)]
    return (
        report.table(header, rows)
        + "\n\nFitted step times, ms (a step, a sequence, 1,000 KV tokens, a prompt token):\n\n"
        + report.table(["", "a", "b", "c", "d"], coefficients)
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run, nothing is kept")
    options = Options(runs=tuple(RUNS)[:1]) if parser.parse_args().quick else Options()
    return carry_out(
        "ground_truth",
        options,
        lambda: measure(options),
        markdown,
        keep=options == Options(),
        refusals=(BenchmarkError, PointsmanError),
        page=report.PROOFS_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
