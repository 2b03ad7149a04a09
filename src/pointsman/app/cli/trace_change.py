"""`pointsman trace convert`, `scale` and `cut`: a trace from a trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from pointsman.app.cli.trace_files import ReadFlags, different_file, load, read_options, save, say_written
from pointsman.core.model.errors import TraceError
from pointsman.core.workload import scale as scaling
from pointsman.core.workload.block_size import with_block_tokens
from pointsman.core.workload.cut import cut as cut_trace
from pointsman.core.workload.generators.spec import ARRIVALS, parse_arrivals
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.mooncake import write_mooncake

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("file", type=_PATH)
@click.argument("out", type=_PATH)
@click.option("--to", type=click.Choice(["pointsman", "mooncake"]), default="pointsman", show_default=True)
@click.option("--to-block-tokens", type=click.IntRange(min=1), help="Split blocks, or put them together.")
@read_options
def convert(file: Path, out: Path, to: str, to_block_tokens: int | None, **flags: Any) -> int:
    """Read a trace FILE of any format and write it to OUT, gzipped if that ends in .gz."""
    different_file(out, file)
    loaded = load(file, ReadFlags(**flags))
    trace = loaded.trace
    if to_block_tokens is not None:
        if not trace.block_tokens:
            raise TraceError(
                f"{file}: nothing is known of what its prompts share, so --to-block-tokens changes nothing"
            )
        trace = with_block_tokens(trace, to_block_tokens)
    if to == "pointsman":
        save(trace, out, loaded.observed)
        return 0
    lost = write_mooncake(trace, out)
    if loaded.observed:
        lost = (*lost, "measured times")
    if lost:
        click.echo(f"{out}: lost, for that format has no place for them: {', '.join(lost)}", err=True)
    say_written(trace, out)
    return 0


@click.command()
@click.argument("file", type=_PATH)
@click.argument("out", type=_PATH)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Times the rate: arrivals come closer.")
@click.option("--gaps", is_flag=True, help="With --rate: pauses inside sessions are divided too.")
@click.option("--clone", type=click.IntRange(min=1), help="Times the sessions, with prompts of their own.")
@click.option("--keep-shared", is_flag=True, help="With --clone: what sessions share is shared by copies too.")
@click.option(
    "--spread-s",
    type=click.FloatRange(min=0),
    help="With --clone: copies start up to so much later; by default a tenth of the trace, or less.",
)
@click.option("--thin", type=click.FloatRange(0, 1, min_open=True), help="Share of sessions to keep.")
@click.option("--sessions", "session_arrivals", metavar="ARRIVALS", help=f"Start sessions anew: {ARRIVALS}.")
@read_options
def scale(
    file: Path,
    out: Path,
    rate: float | None,
    gaps: bool,
    clone: int | None,
    keep_shared: bool,
    spread_s: float | None,
    thin: float | None,
    session_arrivals: str | None,
    **flags: Any,
) -> int:
    """More or less traffic of the same kind; what prompts have in common is kept.

    Done in this order if several are asked for: --thin, --clone, --sessions, --rate. A trace without sessions has
    each request as a session of its own.
    """
    if (gaps and rate is None) or ((keep_shared or spread_s is not None) and clone is None):
        raise TraceError("--gaps belongs to --rate, --keep-shared and --spread-s belong to --clone")
    if rate is None and clone is None and thin is None and session_arrivals is None:
        raise TraceError("nothing to do: give --rate, --clone, --thin or --sessions")
    arrivals = None if session_arrivals is None else parse_arrivals(session_arrivals)
    different_file(out, file)
    loaded = load(file, ReadFlags(**flags))
    trace, rng = loaded.trace, np.random.default_rng(flags["seed"])
    if thin is not None:
        trace = scaling.thin(trace, thin, rng)
    if clone is not None:
        trace = scaling.clone(trace, clone, rng, keep_shared=keep_shared, spread_s=spread_s)
    if arrivals is not None:
        trace = scaling.restart_sessions(trace, arrivals, rng)
    if rate is not None:
        trace = scaling.faster(trace, rate, gaps=gaps)
    _say_unmeasured(loaded)
    save(trace, out)
    return 0


@click.command()
@click.argument("file", type=_PATH)
@click.argument("out", type=_PATH)
@click.option("--from-s", type=click.FloatRange(min=0), default=0.0, help="Requests from that second on.")
@click.option("--to-s", type=click.FloatRange(min=0), default=math.inf, help="Requests before that second.")
@click.option("--requests", type=click.IntRange(min=1), help="At most so many.")
@click.option("--whole-sessions", is_flag=True, help="A session is kept whole when its first request is.")
@read_options
def cut(
    file: Path, out: Path, from_s: float, to_s: float, requests: int | None, whole_sessions: bool, **flags: Any
) -> int:
    """Keep a part of a trace; its times then count from --from-s."""
    different_file(out, file)
    loaded = load(file, ReadFlags(**flags))
    part = cut_trace(loaded.trace, from_s=from_s, to_s=to_s, most_requests=requests, whole_sessions=whole_sessions)
    _say_unmeasured(loaded)
    save(part, out)
    return 0


def _say_unmeasured(loaded: LoadedTrace) -> None:
    if loaded.observed:
        click.echo("measured times are left out: they belong to the traffic as it was", err=True)
