"""`pointsman calibrate`: how fast an engine is, from its results or by asking it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import click

from pointsman.app.calibration.fit import fit
from pointsman.app.calibration.measurement import Measurement, measurements
from pointsman.app.calibration.profile_of import EngineIdentity, profile_of
from pointsman.app.calibration.quality import judge
from pointsman.app.cli.calibrate_output import Status, document, print_quality
from pointsman.app.cli.calibrate_probe import KV_NEEDED, ProbeFlags, probe_engine
from pointsman.app.cli.main import EXIT_INTERRUPTED
from pointsman.app.cli.output import STDOUT, check_files, json_option, write_json
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profile import Profile
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.profile_file import load_profile, write_profile_file

_PATH = click.Path(path_type=Path)
MOST_REQUESTS, MOST_WORKERS, MOST_TOGETHER = 300, 4, 600
"""Of each worker, workers, and of all of them: more make the fit slower and hardly better."""
_USUAL_KV_BYTES = 131_072
_USUAL_BLOCK = 16
_MUCH_CACHED = 0.1
_AHEAD = {"auto": None, "ahead": True, "between": False}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What was given of the engine's sizes."""

    kv_tokens: int | None
    block_tokens: int | None
    max_num_seqs: int | None
    max_batched_tokens: int


@click.command()
@click.argument("file", type=_PATH, required=False)
@click.option("--format", "format_name", help="Of FILE, where it isn't recognised.")
@click.option("--trace", "prefixes", type=_PATH, help="The trace that FILE was made with: which prompts begin alike.")
@click.option("--first", type=click.IntRange(8), help=f"Only the first so many of each worker ({MOST_REQUESTS}).")
@click.option("--engine", "url", metavar="URL", help="Measure a live engine instead: it must have nothing else to do.")
@click.option("--model", help="Its model, where it has several.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds its key.")
@click.option("--most-tokens", type=click.IntRange(1), default=60_000, show_default=True, help="To spend on it.")
@click.option("--most-seconds", type=click.FloatRange(1), default=180, show_default=True, help="To spend on it.")
@click.option("--most-prompt", type=click.IntRange(1), default=2048, show_default=True, help="Longest prompt, tokens.")
@click.option("--most-sequences", type=click.IntRange(1), default=16, show_default=True, help="Most asked at once.")
@click.option("--start", metavar="PROFILE", help="A similar engine: a name, estimate:… or a file. Else all known ones.")
@click.option("--scheduling", type=click.Choice(list(_AHEAD)), default="auto", show_default=True, help="Of its steps.")
@click.option("--kv-tokens", type=click.IntRange(1), help="Tokens that its KV cache holds, as it logs them.")
@click.option("--block-tokens", type=click.IntRange(1), help="Tokens a KV block (16).")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences that it computes at once (256).")
@click.option("--max-batched-tokens", type=click.IntRange(1), default=8192, show_default=True, help="Of one step.")
@click.option("--name", help="Of the profile; default: that of the file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the words of prompts.")
@click.option("--out", type=_PATH, help="Write a profile file, for --profile of other verbs.")
@json_option
def calibrate(
    file: Path | None,
    format_name: str | None,
    prefixes: Path | None,
    first: int | None,
    url: str | None,
    model: str | None,
    api_key_env: str | None,
    most_tokens: int,
    most_seconds: float,
    most_prompt: int,
    most_sequences: int,
    start: str | None,
    scheduling: str,
    kv_tokens: int | None,
    block_tokens: int | None,
    max_num_seqs: int | None,
    max_batched_tokens: int,
    name: str | None,
    seed: int,
    out: Path | None,
    json_file: str | None,
) -> int:
    """Fit an engine's step times to FILE (results with times of each request), or to what a live engine does.

    Says how good the fit is, and what not to use it for. Ctrl-C ends the measuring early and uses what has come.
    """
    if (file is None) == (url is None):
        raise ConfigError("give either a FILE of results or --engine URL")
    check_files({"--out": out, "--json": json_file}, {"FILE": file, "--trace": prefixes})
    similar = None if start is None else load_profile(start)
    interrupted, facts = False, None
    cached_notes: list[str] = []
    if url is not None:
        key = _key(api_key_env)
        kv_needed = out is not None and kv_tokens is None and similar is None
        flags = ProbeFlags(url, model, key, most_tokens, most_seconds, most_prompt, most_sequences, seed, kv_needed)
        measured, facts, interrupted = probe_engine(flags)
        source = f"measured at {facts.describe().partition(';')[0]}"
    else:
        assert file is not None
        measured, source, cached_notes = _read(file, format_name, prefixes, first)
    sizes = _Sizes(kv_tokens, block_tokens, max_num_seqs, max_batched_tokens)
    engine, known_kv, notes = _engine(sizes, similar, facts, measured)
    if out is not None and known_kv is None:
        raise ConfigError(f"it is not known how much the engine's KV cache holds; {KV_NEEDED}")
    with Status() as status:
        solution = fit(
            measured,
            engine,
            start=None if similar is None else similar.step,
            ahead=_AHEAD[scheduling],
            on_stage=lambda stage: status.show(f"fitting: {stage}"),
        )
        status.show("checking on requests that are held out")
        quality = judge(solution, measured, [*cached_notes, *notes])
    print_quality(quality, source, to_stderr=json_file == STDOUT)
    if json_file is not None:
        write_json(document(quality, source), json_file)
    if out is not None and known_kv is not None:
        identity = _identity(name or out.stem, known_kv, similar, facts)
        write_profile_file(out, profile_of(solution, quality, identity, source))
        click.echo(f"{out}: written; use it with --profile {out}", err=True)
    return EXIT_INTERRUPTED if interrupted else 0


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"--api-key-env {variable}: there is no such environment variable, or it is empty")
    return key


def _read(
    file: Path, format_name: str | None, prefixes: Path | None, first: int | None
) -> tuple[tuple[Measurement, ...], str, list[str]]:
    loaded = read_trace(file, format_name)
    for line in loaded.problems.describe():
        click.echo(f"{file.name}: {line}", err=True)
    trace = None if prefixes is None else read_trace(prefixes).trace
    there = len({one.worker for one in loaded.observed})
    workers = min(MOST_WORKERS, max(1, there))
    most = first or min(MOST_REQUESTS, MOST_TOGETHER // workers)
    measured = measurements(loaded, most_requests=most, most_workers=workers, prefixes=trace)
    if there > workers:
        click.echo(f"{file.name}: the {workers} of {there} workers with the most requests are looked at", err=True)
    cached = sum(observed.cached_tokens or 0 for observed in loaded.observed)
    prompts = sum(observed.prompt_tokens for observed in loaded.observed)
    notes = []
    if trace is None and not loaded.trace.block_tokens and cached > _MUCH_CACHED * prompts:
        notes.append(
            f"{100 * cached / prompts:.0f} % of the prompt tokens were cached, and it is not known which: "
            "prefill looks faster than it is; give the trace with --trace"
        )
    requests = sum(len(one) for one in measured)
    of_workers = f" of {workers} workers" if workers > 1 else ""
    return measured, f"{file.name}: {requests:,} of {len(loaded.trace):,} requests{of_workers}", notes


def _engine(
    sizes: _Sizes, similar: Profile | None, facts: EngineFacts | None, measured: tuple[Measurement, ...]
) -> tuple[EngineConfig, int | None, list[str]]:
    """Sizes for the replay, the KV cache's if it is known, and what had to be assumed."""
    kv_tokens = sizes.kv_tokens or (facts and facts.kv_capacity_tokens) or (similar and similar.kv_tokens) or None
    block = sizes.block_tokens or (facts and facts.block_size_tokens) or _block_for(measured[0].block_tokens)
    sequences = sizes.max_num_seqs or (facts and facts.max_batch) or 256
    notes = []
    held = kv_tokens
    if held is None:
        held = sum(
            request.prompt_tokens + request.output_tokens + block for one in measured for request in one.requests
        )
        notes.append("the size of the engine's KV cache is not known and taken as never full; give --kv-tokens")
    blocks = max(1, held // block)
    config = EngineConfig(
        step=StepCoefficients(0, 0, 0, 0),
        num_blocks=blocks,
        block_size=block,
        max_num_seqs=sequences,
        max_batched_tokens=max(sizes.max_batched_tokens, sequences),
        max_model_len=blocks * block,
    )
    return config, kv_tokens, notes


def _block_for(trace_block_tokens: int) -> int:
    """The usual block size, or that of the trace where those don't go together, as blocks of text do not."""
    fits = trace_block_tokens and trace_block_tokens % _USUAL_BLOCK and _USUAL_BLOCK % trace_block_tokens
    return trace_block_tokens if fits else _USUAL_BLOCK


def _identity(name: str, kv_tokens: int, similar: Profile | None, facts: EngineFacts | None) -> EngineIdentity:
    identity = EngineIdentity(name, kv_tokens, _USUAL_KV_BYTES)
    if similar is not None:
        identity = EngineIdentity(
            name,
            kv_tokens,
            similar.kv_bytes_per_token,
            similar.gpu,
            similar.model,
            similar.engine,
            similar.tensor_parallel,
        )
    if facts is not None:
        found = " ".join(filter(None, (facts.kind, facts.version)))
        identity = dataclasses.replace(identity, engine=found, model=next(iter(facts.models), identity.model))
    return identity
