"""`pointsman simulate`: which policy, how many workers: measured in virtual time before anything is switched on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from pointsman.app.cli.main import EXIT_INTERRUPTED
from pointsman.app.cli.output import check_files, json_option
from pointsman.app.cli.simulate_output import write_and_print
from pointsman.app.cli.simulate_plan import SimulateFlags, plan
from pointsman.app.cli.simulate_progress import RunsBar
from pointsman.app.experiments.conduct import GOODPUT_TARGET, conduct
from pointsman.app.experiments.summary import summarize
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.transfer import TransferMode
from pointsman.edge.engines.local.cores import usable_cores

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--trace", type=_PATH, help="Recorded traffic: a file of any format that `pointsman trace` reads.")
@click.option(
    "--make", "make_spec", metavar="SPEC", help="Made traffic: 'chat --arrivals 2 --sessions 100' (trace make)."
)
@click.option("--format", "trace_format", help="Its format, where it isn't recognised.")
@click.option("--workers", required=True, help="How many: 16, or 4:12 for 4 that prefill and 12 that decode.")
@click.option("--profile", required=True, help="How fast they are: a name or file, or prefill=NAME,decode=NAME.")
@click.option("--policy", "policies", default="cost,kv,round_robin", show_default=True, help="Who is compared.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs a policy; 1: trace as it is.")
@click.option("--slo", help="When an answer is good: ttft=2s,tpot=50ms,e2e=30s, or some of them.")
@click.option("--rate", help="×1.5: so many times as fast as recorded; 12/s: so many requests a second.")
@click.option("--clients", type=click.IntRange(1), help="So many clients ask in turn, instead of the trace's times.")
@click.option("--requests", type=click.IntRange(1), help="Only the first so many of the trace.")
@click.option("--sweep", "sweep_text", metavar="AXIS=VALUES", help="workers=4..32, rate=1..8:1, clients=…, roles=all.")
@click.option("--knee", type=click.FloatRange(0, 1), default=GOODPUT_TARGET, show_default=True, help="Goodput to keep.")
@click.option("--bisect", type=click.IntRange(0), default=0, show_default=True, help="Halve the knee's gap so often.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core.")
@click.option("--block-tokens", type=click.IntRange(1), help="Tokens a KV block; default: the trace's, else 16.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences that an engine computes at once (256).")
@click.option("--max-batched-tokens", type=click.IntRange(1), help="Token budget of a step (8192).")
@click.option("--max-context-tokens", type=click.IntRange(1), help="Longest prompt and answer; default: the KV cache.")
@click.option("--kv-events/--no-kv-events", default=None, help="Engines say which blocks they hold (on).")
@click.option("--metrics-every", metavar="TIME", help="How often engines' load is read (5s); 0s: before each decision.")
@click.option("--front-end-ms", type=click.FloatRange(0), help="A request's time outside of engines (the profile's).")
@click.option(
    "--kv-transfer",
    type=click.Choice([mode.value for mode in TransferMode]),
    help="When KV moves between workers; default: auto where some are for prefill only, else off.",
)
@click.option("--link", metavar="LINK", help="Over which it does: roce, 25gbe, 12.5GB/s:0.5ms (usual for the GPUs).")
@click.option("--noise", type=click.FloatRange(0, 1), help="Spread of step times (0.03; 0 with one seed).")
@click.option("--csv", "csv_file", type=_PATH, help="A row for each run, to FILE.")
@click.option("--html", "html_file", type=_PATH, help="A report with plots, to FILE.")
@json_option
def simulate(
    sweep_text: str | None,
    knee: float,
    bisect: int,
    jobs: int | None,
    csv_file: Path | None,
    html_file: Path | None,
    json_file: str | None,
    **flags: Any,
) -> int:
    """Compare policies, fleet sizes and loads on recorded or made traffic, by the code that decides live.

    Each seed moves recorded conversations a little in time, or makes traffic anew. Ctrl-C ends it early and shows what
    is done.
    """
    if bisect and sweep_text is None:
        raise ConfigError("--bisect looks between the points of a sweep; give one with --sweep")
    for option, value in (("--knee", knee), ("--noise", flags["noise"]), ("--front-end-ms", flags["front_end_ms"])):
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{option} {value}: write a number")
    check_files({"--json": json_file, "--csv": csv_file, "--html": html_file}, {"--trace": flags["trace"]})
    planned = plan(SimulateFlags(**flags), sweep_text)
    for note in planned.notes:
        click.echo(note if note.startswith(" ") else f"note: {note}", err=True)
    with RunsBar() as bar:
        results = conduct(
            planned.experiment,
            jobs=jobs or usable_cores(),
            sweep=planned.sweep,
            bisections=bisect,
            target=knee,
            on_progress=bar.show,
        )
    summary = summarize(results, knee, planned.notes)
    write_and_print(summary, results, json_file, csv_file, html_file)
    if results.died:
        raise ConfigError(results.died)
    return EXIT_INTERRUPTED if results.interrupted else 0
