"""How soon step times learned from traffic are right, from a prior that is wrong by a factor of three.

On two recorded runs of vLLM, and on simulated engines of which the truth is known.

usage: scripts/bench online_model [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from harness import report
from harness.command import carry_out
from harness.data import data_file
from harness.observed_engine import Served, poisson_jobs, serve
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.observer import WorkerObserver
from pointsman.core.timing.online import LearnedTimes
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.profiles import profile
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.traces.formats import read_trace

BAR_AFTER, BAR_PERCENT = 50, 8.0
WORKER = "worker"
RUNS = {"RTX4090": "rtx4090/llama-8b", "RTXPRO6000": "rtxpro6000/llama-8b"}
"""Folder of the run → the estimate that its prior is made of."""
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    factors: tuple[float, ...] = (3.0, 1 / 3)
    """Prior over what it should be."""
    after: tuple[int, ...] = (0, 10, 25, 50, 100, 200)
    """Requests that ended before."""
    engines: tuple[str, ...] = ("h100/llama-70b-tp4", "h200/deepseek-r1-tp8", "a100/llama-8b")
    requests: int = 300
    rates: tuple[float, ...] = (0.5, 3.0)
    noise: float = 0.05
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that ended. `span`: its time between first and last token and what the engine did meanwhile."""

    span: Interval | None
    at_first_token: tuple[float, float] | None
    """Sequences decoding, itself included, and their KV tokens."""
    learned: tuple[Interval, ...]
    """What a front end learned since the one before."""
    served: Served | None = None
    """Of a simulated engine."""


def recorded(run: str) -> list[Ended]:
    """A run of vLLM, as a front end would have seen it that hears of tokens at the first and the last only."""
    folder = f"vllm-ground-truth/{run}/Llama-3.1-8B"
    meta = json.loads(data_file(f"{folder}/meta.json").read_text())
    loaded = read_trace(data_file(f"{folder}/requests.jsonl"))
    events: list[tuple[float, int, int]] = []
    for number, one in enumerate(loaded.observed):
        for kind, at_ms in enumerate((one.arrival_ms, one.first_token_ms, one.last_token_ms)):
            if at_ms is not None:
                events.append((at_ms, kind, number))
    observer = WorkerObserver(meta["engine_kwargs"]["max_num_batched_tokens"])
    done: list[Ended] = []
    loads: dict[int, tuple[float, float]] = {}
    learned: list[Interval] = []
    for at_ms, kind, number in sorted(events):
        one, name = loaded.observed[number], str(number)
        if kind == 0:
            observer.started(name, at_ms, one.prompt_tokens)
            continue
        if kind == 1:
            found = observer.first_token(name, at_ms)
            load = observer.load(at_ms, step_ms=_last_tpot(done))
            loads[number] = (load.sequences, load.context_tokens)
        else:
            found = observer.ended(name, at_ms, output_tokens=one.output_tokens)
        if found is not None:
            learned.append(found)
        if kind == 2:
            done.append(Ended(found, loads.get(number), tuple(learned)))
            learned = []
    return done


def _last_tpot(done: Sequence[Ended]) -> float | None:
    spans = [one.span for one in done[-10:] if one.span is not None]
    return statistics.median(span.elapsed_ms / span.steps for span in spans) if spans else None


def simulated(engine: str, rate: float, options: Options, *, live: bool) -> list[Ended]:
    """An engine of which the truth is a profile, with noise in each step; reports every 16 tokens, or none."""
    rng = random.Random(options.seed)
    jobs = poisson_jobs(rng, options.requests, rate, (200, 3000), (50, 400))
    config = EngineConfig(profile(engine).step, num_blocks=20_000, max_model_len=8_192)
    served = serve(config, jobs, report_every=16 if live else None, noise=options.noise, rng=rng, overhead_ms=20.0)
    return [Ended(one.span, None, one.intervals, one) for one in served]


def errors(ended: Sequence[Ended], prior: StepCoefficients, after: Sequence[int]) -> Results:
    """Percent by which TPOT was off: learning stops after so many requests, and all later ones are predicted.

    `tpot`: with the load that they met. `ahead`: with the load at their first token, as if nothing changed later.
    `ttft`: of the first token, with the load when the request was sent.
    """
    learned = LearnedTimes({}, default=prior)
    learned.joined(WORKER, "class")
    found: Results = {"tpot": {}, "ahead": {}, "ttft": {}}
    for count in range(len(ended) + 1):
        if count in after:
            coefficients = learned.coefficients(WORKER)
            assert coefficients is not None
            found["tpot"][str(count)] = _mean_error(ended[count:], coefficients)
            found["ahead"][str(count)] = _mean_error_ahead(ended[count:], coefficients)
            found["ttft"][str(count)] = _ttft_error(ended[count:], coefficients, learned.overhead_ms(WORKER))
        if count < len(ended):
            for interval in ended[count].learned:
                learned.observe(WORKER, "class", interval)
    error = learned.error(WORKER)
    assert error is not None
    found["own_mape"] = error.mape
    return found


def _mean_error(later: Sequence[Ended], coefficients: StepCoefficients) -> float | None:
    spans = [one.span for one in later if one.span is not None]
    values = [abs(span.predicted_ms(coefficients) / span.elapsed_ms - 1) for span in spans]
    return 100 * statistics.fmean(values) if values else None


def _mean_error_ahead(later: Sequence[Ended], coefficients: StepCoefficients) -> float | None:
    values = []
    for one in later:
        if one.span is not None and one.at_first_token is not None:
            sequences, context = one.at_first_token
            said_ms = coefficients.step_ms(sequences, context, 0.0)
            values.append(abs(said_ms / (one.span.elapsed_ms / one.span.steps) - 1))
    return 100 * statistics.fmean(values) if values else None


def _ttft_error(later: Sequence[Ended], coefficients: StepCoefficients, overhead_ms: float) -> float | None:
    served = [one.served for one in later if one.served is not None]
    values = []
    for one in served:
        seen = one.load
        load = Load(seen.sequences, seen.context_tokens, seen.waiting_prefill_tokens, seen.waiting)
        said_ms = ttft_ms(coefficients, load, one.job.prompt_tokens, overhead_ms=overhead_ms)
        values.append(abs(said_ms / one.ttft_ms - 1))
    return 100 * statistics.fmean(values) if values else None


def run(options: Options, *, with_data: bool) -> Results:
    """All cases. Each: what it is, the prior's factor, errors."""
    cases: list[Results] = []
    if with_data:
        for name, engine in RUNS.items():
            ended = recorded(name)
            for factor in (*options.factors, 1.0):
                found = errors(ended, profile(engine).step.scaled(factor), options.after)
                cases.append({"case": f"vLLM on {name}, recorded", "factor": factor, **found})
    for engine in options.engines:
        for rate in options.rates:
            for live in (True, False):
                ended = simulated(engine, rate, options, live=live)
                for factor in options.factors:
                    found = errors(ended, profile(engine).step.scaled(factor), options.after)
                    seen = "reports" if live else "log"
                    cases.append({"case": f"{engine}, {rate:g}/s, {seen}", "factor": factor, **found})
    return {"cases": cases, "after": options.after}


def summary(results: Results) -> Results:
    """The worst of recorded and of simulated cases after 50 requests, percent."""
    worst: Results = {}
    for case in results["cases"]:
        kind = "recorded" if case["case"].endswith("recorded") else "simulated"
        worst[kind] = max(worst.get(kind, 0.0), case["tpot"].get(str(BAR_AFTER)) or 0.0)
    return {"tpot_error_after_50": worst, "met": all(value <= BAR_PERCENT for value in worst.values())}


def markdown(results: Results) -> str:
    """A row a case."""
    after = [str(count) for count in results["after"]]
    header = ["TPOT error %, mean; requests learned from", "prior", *after, "ahead, 50", "TTFT, 50"]
    rows = []
    for case in results["cases"]:
        factor = f"× {Fraction(case['factor']).limit_denominator(10)}"
        values = [report.number(case["tpot"].get(count), 1) for count in after]
        values += [report.number(case[kind].get(str(BAR_AFTER)), 1) for kind in ("ahead", "ttft")]
        rows.append([case["case"], factor, *values])
    found = summary(results)
    worst = ", ".join(f"{kind} {value:.1f} %" for kind, value in found["tpot_error_after_50"].items())
    verdict = "met" if found["met"] else "MISSED"
    return f"{report.table(header, rows)}\n\nWorst after 50 requests: {worst}; bar {BAR_PERCENT:g} %: {verdict}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one simulated engine, no recorded runs, nothing written")
    quick = parser.parse_args().quick
    options = Options(engines=("h100/llama-70b-tp4",), requests=120, after=(0, 10, 50)) if quick else Options()
    return carry_out(
        "online_model",
        options,
        lambda: run(options, with_data=not quick),
        markdown,
        summary=summary,
        keep=not quick,
        page=report.ROOT / "docs" / "time-model.md",
    )


if __name__ == "__main__":
    sys.exit(main())
