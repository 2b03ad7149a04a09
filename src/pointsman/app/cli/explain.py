"""`pointsman explain`: why a worker got a request, what came true, what another policy would have done."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from pointsman.app.cli.admin_client import admin_url_option
from pointsman.app.cli.explain_log import LogFiles
from pointsman.app.cli.explain_source import FrontEnds, NothingFoundError, Source
from pointsman.app.cli.explain_table import print_explained, print_list, print_skew, print_summary
from pointsman.app.cli.explain_transfers import print_transfers
from pointsman.app.cli.output import json_option, write_json
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.trials.arms import Arm
from pointsman.edge.decisions.explained import Explained, explained
from pointsman.edge.decisions.search import MOST_LIMIT, WORST, Query
from pointsman.edge.decisions.skew import SkewReport, skew
from pointsman.edge.decisions.state import Recorded, StateError, unpack_state
from pointsman.edge.decisions.what_if import WhatIf, WhatIfSummary, summary, what_if
from pointsman.edge.serving.policies import load_registry
from pointsman.edge.telemetry.decision_row import DecisionRow

EXIT_NOTHING = 1
"""Asked, and there is nothing to tell; 2 as everywhere: could not ask."""
_PIPE_WIDTH = 220
_LAST_FOR_SKEW = 1_000
_MOST_IN_DETAIL = 10
"""Of many decisions, more than this are not each looked up with those around them."""
_JUDGE = "cost"


class Explanations(msgspec.Struct, omit_defaults=True):
    """The document of `explain --last` and `--worst` as JSON."""

    decisions: list[Explained]
    what_if: WhatIfSummary | None = None
    notes: list[str] = []


class SkewReports(msgspec.Struct, omit_defaults=True):
    """The document of `explain --skew` as JSON."""

    models: list[SkewReport]
    notes: list[str] = []


def _what_if_policy(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    key, _, name = text.partition("=")
    if key != "policy" or not name:
        raise click.BadParameter(f"{text!r}: expected policy=NAME, for example policy=round_robin", ctx, param)
    return name


@click.command()
@click.argument("decision_id", metavar="[ID]", required=False)
@click.option("--last", type=click.IntRange(1, MOST_LIMIT), metavar="N", help="The last N decisions.")
@click.option(
    "--worst", type=click.Choice(list(WORST)), help="Those with the largest of this (error: of predicted TTFT)."
)
@click.option("--limit", type=click.IntRange(1, MOST_LIMIT), metavar="N", help="With --worst: how many. [default: 1]")
@click.option("--skew", "ask_skew", is_flag=True, help="Whether load is uneven, and why.")
@click.option("--transfers", "ask_transfers", is_flag=True, help="What moving KV between workers saved and lost.")
@click.option("--what-if", "other", metavar="policy=NAME", callback=_what_if_policy, help="What it would have chosen.")
@click.option("--worker", help="Only decisions for this worker.")
@click.option("--prefill-worker", help="Only requests whose prompt this worker was to compute for another one.")
@click.option("--model", help="Only requests for this model.")
@click.option("--policy", "by_policy", help="Only decisions by this policy.")
@click.option("--tenant", help="Only requests of this tenant.")
@click.option("--arm", type=click.Choice([arm.value for arm in Arm]), help="Only requests of this arm of a rollout.")
@click.option("--status", help="Only requests that ended so, or run: running, finished, refused, failed, cancelled.")
@click.option("--since", metavar="AGO", help="Only requests that arrived since, for example 10m.")
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Decisions of a log, with the files rotated away from it, instead of a running front end.",
)
@admin_url_option
@json_option
@click.pass_context
def explain(
    ctx: click.Context,
    decision_id: str | None,
    last: int | None,
    worst: str | None,
    limit: int | None,
    ask_skew: bool,
    ask_transfers: bool,
    other: str | None,
    worker: str | None,
    prefill_worker: str | None,
    model: str | None,
    by_policy: str | None,
    tenant: str | None,
    arm: str | None,
    status: str | None,
    since: str | None,
    logs: tuple[Path, ...],
    admin_url: str,
    json_file: str | None,
) -> int:
    """Say why a worker got a request, what was predicted and what came true.

    ID is what an answer has in its header `x-pointsman-request-id`, or the `x-request-id` that the client gave.
    All front ends of one `serve --processes` are asked.

    Ends with 1 if there is no such decision, or no recorded state for --what-if; with 2 if nobody could be asked.
    """
    texts = {
        "worker": worker,
        "prefill_worker": prefill_worker,
        "model": model,
        "policy": by_policy,
        "tenant": tenant,
        "arm": arm,
        "status": status,
        "since": since,
    }
    filters = [(name, text) for name, text in texts.items() if text is not None]
    if decision_id == "":
        raise click.UsageError("ID is empty: name what an answer has in its header x-pointsman-request-id")
    summed_up = ask_skew or ask_transfers
    ways = [decision_id is not None, last is not None and not summed_up, worst is not None, ask_skew, ask_transfers]
    if sum(ways) != 1 and not (sum(ways) == 2 and last is not None and worst is not None):
        raise click.UsageError(
            "Name one of: an ID, --last N, --worst TIME (of the last N with --last), --skew, --transfers."
        )
    if decision_id is not None and filters:
        options = ", ".join("--" + name.replace("_", "-") for name, _ in filters)
        raise click.UsageError(f"An ID names one decision; leave out {options}")
    if limit is not None and worst is None:
        raise click.UsageError("--limit goes with --worst; --last N says how many by itself")
    if summed_up and other is not None:
        raise click.UsageError("--what-if goes with decisions, not with --skew or --transfers")
    for option, value in (("--status", status), ("--arm", arm)):
        if ask_transfers and value is not None:
            raise click.UsageError(f"--transfers looks at all requests that ended; leave out {option}")
    if logs and ctx.get_parameter_source("admin_url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("Name either --log or --admin-url")
    source: Source
    if logs:
        source = files = LogFiles(logs)
        ctx.call_on_close(files.close)
    else:
        source = FrontEnds(admin_url)
    try:
        if ask_skew:
            return _skew(source, _query(filters, last or _LAST_FOR_SKEW, None, _LAST_FOR_SKEW), json_file)
        if ask_transfers:
            return _transfers(source, _query(filters, last, None, MOST_LIMIT), json_file)
        registry = load_registry()
        policy = None if other is None else registry.get(other)
        if decision_id is not None:
            return _one(source, decision_id, policy, registry, json_file)
        most = last if worst is None else limit or 1
        return _many(source, _query(filters, last, worst, most or 1), policy, registry, json_file)
    except (NothingFoundError, StateError) as error:
        click.echo(f"pointsman: {error}", err=True)
        return EXIT_NOTHING


def _query(filters: list[tuple[str, str]], last: int | None, worst: str | None, limit: int) -> Query:
    params = [*filters, ("limit", str(limit))]
    params += [(name, str(value)) for name, value in (("last", last), ("worst", worst)) if value is not None]
    return Query.of(params)


def _one(source: Source, name: str, policy: Policy | None, registry: PolicyRegistry, json_file: str | None) -> int:
    row, where = source.one(name)
    recorded = _state(row)
    if policy is not None and recorded is None:
        raise StateError(_no_state(row))
    told = _told(source, [(row, where)], None)[0]
    if policy is not None and recorded is not None:
        told.what_if = what_if(recorded, policy, _judge(registry))
    if json_file is not None:
        write_json(told, json_file)
    else:
        print_explained(_console(), told)
    _say_notes(source)
    return 0


def _many(source: Source, query: Query, policy: Policy | None, registry: PolicyRegistry, json_file: str | None) -> int:
    found = source.search(query)
    if not found:
        raise NothingFoundError(
            "no decision that is kept matches; there may be none yet"
            if query.worst is None
            else f"no decision that is kept matches and has what --worst {query.worst} goes by"
        )
    told = _told(source, found, query.worst)
    answer = Explanations(told)
    if policy is not None:
        answer.what_if = _replayed(found, told, policy, registry)
    if json_file is not None:
        answer.notes = source.notes
        write_json(answer, json_file)
        return 0
    console = _console()
    if len(told) == 1:
        print_explained(console, told[0])
    else:
        print_list(console, told, query.worst)
    if answer.what_if is not None and len(told) > 1:
        print_summary(console, answer.what_if)
    _say_notes(source)
    return 0


def _replayed(
    found: list[tuple[DecisionRow, str]], told: list[Explained], policy: Policy, registry: PolicyRegistry
) -> WhatIfSummary:
    answers: list[WhatIf] = []
    judge = _judge(registry)
    for (row, _), one in zip(found, told, strict=True):
        recorded = _state(row)
        if recorded is not None:
            one.what_if = what_if(recorded, policy, judge)
            answers.append(one.what_if)
    if not answers:
        raise StateError(_no_state(found[0][0]))
    return summary(policy.name, answers, len(found) - len(answers))


def _told(source: Source, found: list[tuple[DecisionRow, str]], worst: str | None) -> list[Explained]:
    few = [row for row, _ in found[:_MOST_IN_DETAIL]] if len(found) <= _MOST_IN_DETAIL or worst is not None else []
    around = source.around(few) if few else {}
    facts = source.facts() if few else {}
    of = worst if worst in ("ttft", "itl") else "ttft" if worst == "error" else None
    return [
        explained(row, _state(row), around.get(row.id, ()), facts.get(row.model, {}), where, of) for row, where in found
    ]


def _skew(source: Source, query: Query, json_file: str | None) -> int:
    rows = source.plain(query)
    if not rows:
        raise NothingFoundError("nothing was decided, so nothing can be uneven")
    reports = skew(rows, source.facts())
    if json_file is not None:
        write_json(SkewReports(reports, source.notes), json_file)
        return 0
    print_skew(_console(), reports)
    _say_notes(source)
    return 0


def _transfers(source: Source, query: Query, json_file: str | None) -> int:
    report = source.transfers(query)
    if not report.decisions:
        raise NothingFoundError("nothing that ended is kept and matches; there may be nothing yet")
    if json_file is not None:
        report.notes += source.notes
        write_json(report, json_file)
        return 0
    print_transfers(_console(), report)
    _say_notes(source)
    return 0


def _state(row: DecisionRow) -> Recorded | None:
    return unpack_state(row.state) if row.state else None


def _no_state(row: DecisionRow) -> str:
    return (
        f"{row.id}: no state of the fleet was recorded with it, so it can't be decided again: nothing was decided, or "
        "it is of a log without states (decision-log.state: true, or a share)"
    )


def _judge(registry: PolicyRegistry) -> Policy | None:
    return registry.get(_JUDGE) if _JUDGE in registry.names() else None


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _say_notes(source: Source) -> None:
    for note in source.notes:
        click.echo(f"note: {note}", err=True)
