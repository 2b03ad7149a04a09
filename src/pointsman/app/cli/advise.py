"""`pointsman advise`: is a coordination layer worth it, which policy, how many GPUs: in plain words, with numbers."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from pathlib import Path

import click

from pointsman.app.advice.advise import advice
from pointsman.app.advice.consult import consult
from pointsman.app.advice.document import Advice
from pointsman.app.advice.findings import Findings
from pointsman.app.advice.fleets import fleets, parse_gpus
from pointsman.app.advice.question import TARGET, Question, assumed_slo
from pointsman.app.cli.main import EXIT_INTERRUPTED
from pointsman.app.cli.output import check_files, json_option, write_json
from pointsman.app.cli.simulate_progress import RunsBar
from pointsman.app.experiments.fleet import parse_profiles
from pointsman.app.experiments.oversize import oversize_note
from pointsman.app.experiments.report.page import html_report
from pointsman.app.experiments.slo import parse_slo
from pointsman.app.simulate.setup import Setup
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.links import link
from pointsman.edge.engines.local.cores import usable_cores
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.profile_file import load_profile

_PATH = click.Path(path_type=Path)
_WIDTH = 100


@click.command()
@click.option(
    "--trace", "trace_file", type=_PATH, required=True, help="Recorded traffic, as `pointsman trace` reads it."
)
@click.option("--format", "trace_format", help="Its format, where it isn't recognised.")
@click.option("--gpus", required=True, help="How many there are: 8; or 4:4 of two kinds with a profile each.")
@click.option("--profile", required=True, help="How fast a worker is: a name or file, or prefill=NAME,decode=NAME.")
@click.option("--slo", help="When an answer is good: ttft=2s,tpot=50ms,e2e=30s, or some of them.")
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    default=TARGET,
    show_default=True,
    help="Good answers wanted.",
)
@click.option("--thorough", is_flag=True, help="Simulate the whole trace, not its busiest stretch.")
@click.option("--seeds", type=click.IntRange(2), default=5, show_default=True, help="Runs of each case.")
@click.option("--link", "link_text", metavar="LINK", help="Between workers: roce, 100gbe, 12.5GB/s:0.5ms, …")
@click.option("--block-tokens", type=click.IntRange(1), help="Tokens a KV block; default: the trace's, else 16.")
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Sequences that an engine computes at once.",
)
@click.option(
    "--max-batched-tokens", type=click.IntRange(1), default=8192, show_default=True, help="Token budget of a step."
)
@click.option("--jobs", type=click.IntRange(1), help="Processes; default: one a core.")
@click.option("--html", "html_file", type=_PATH, help="A report on the policies with plots, to FILE.")
@json_option
def advise(
    trace_file: Path,
    trace_format: str | None,
    gpus: str,
    profile: str,
    slo: str | None,
    target: float,
    thorough: bool,
    seeds: int,
    link_text: str | None,
    block_tokens: int | None,
    max_num_seqs: int,
    max_batched_tokens: int,
    jobs: int | None,
    html_file: Path | None,
    json_file: str | None,
) -> int:
    """Is a coordination layer worth it for this traffic on these GPUs, and what else should be changed?

    It simulates policies, loads, splits and fleet sizes, and says nothing that chance could have made. Ctrl-C ends it
    early and tells what is known by then.
    """
    check_files({"--json": json_file, "--html": html_file}, {"--trace": trace_file})
    if not math.isfinite(target):
        raise ConfigError(f"--target {target}: write a share such as 0.95")
    profiles, counts = parse_profiles(profile, load_profile), parse_gpus(gpus)
    possible = fleets(profiles, counts)
    limits = None if slo is None else parse_slo(slo)
    setup = Setup(
        groups=possible.together[0].groups,
        block_tokens=block_tokens,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        link=None if link_text is None else link(link_text),
    )
    loaded = read_trace(trace_file, trace_format)
    trace = loaded.trace
    setup.blocks_for(trace.block_tokens)
    oversize_note(trace, [replace(setup, groups=fleet.groups) for fleet in possible.together])
    question = Question(
        trace=trace,
        profiles=profiles,
        fleets=possible,
        setup=setup,
        slo=limits or assumed_slo(trace, profiles, setup.max_batched_tokens),
        slo_assumed=limits is None,
        target=target,
        seeds=seeds,
        thorough=thorough,
    )
    with RunsBar() as bar:
        findings = consult(question, jobs or usable_cores(), bar.show)
    answer = advice(findings, tuple(line.strip() for line in loaded.problems.describe()))
    if html_file is not None:
        _write_html(answer, findings, html_file)
    if json_file is not None:
        write_json(answer, json_file)
    else:
        click.echo(text(answer))
    return EXIT_INTERRUPTED if answer.interrupted else 0


def text(answer: Advice) -> str:
    """What a person reads: the answer, then the parts of it, then what it rests on."""
    parts = ["\n".join(textwrap.wrap(answer.headline, _WIDTH))]
    for section in answer.sections:
        if section.title == "Measured":
            parts.append(_list(section.title, section.sentences))
        else:
            body = textwrap.fill(" ".join(section.sentences), _WIDTH, initial_indent="  ", subsequent_indent="  ")
            parts.append(f"{section.title}\n{body}")
    parts.append(_list("Assumed", answer.assumed))
    parts.append(_list("Not known", answer.unknown))
    return "\n\n".join(parts)


def _list(title: str, sentences: list[str]) -> str:
    lines = [textwrap.fill(each, _WIDTH, initial_indent="  - ", subsequent_indent="    ") for each in sentences]
    return "\n".join([title, *lines])


def _write_html(answer: Advice, findings: Findings, file: Path) -> None:
    if answer.comparison is None or findings.results is None:
        raise ConfigError(f"--html {file}: not written, for nothing was simulated before the interruption")
    try:
        file.write_text(html_report(answer.comparison, findings.results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {file}: can't be written: {error.strerror}") from error
