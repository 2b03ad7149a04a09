"""`pointsman rollout`: a new policy for a share of the traffic: begin, watch, widen, roll back."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from pointsman.app.cli.admin_client import DEFAULT_ADMIN_URL, admin_url_option, call, front_ends
from pointsman.app.cli.everywhere import tell_all
from pointsman.app.cli.output import json_option, write_json
from pointsman.app.cli.rollout_sum import added_up
from pointsman.app.cli.rollout_table import print_rollout, print_shadows, share_text
from pointsman.core.model.errors import EngineError
from pointsman.core.trials.arms import By
from pointsman.edge.serving.rollout_report import RolloutDocument, RolloutReport

_PIPE_WIDTH = 200
_PATH = "/v1/rollout"
STEPS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares that `widen` goes through."""


@click.group(invoke_without_command=True)
@click.pass_context
def rollout(ctx: click.Context) -> None:
    """A new policy for a share of the traffic; without a verb: how it does."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show)


@rollout.command("status")
@admin_url_option
@json_option
def show(admin_url: str = DEFAULT_ADMIN_URL, json_file: str | None = None) -> int:
    """Show how the new policy does beside the old one, and what shadow policies would do.

    The requests of all front ends of one `serve --processes` are added up. Differences are with prompts and times
    alike; their limits hold however often you look, but for those of p50 and p99, which are for one look.
    """
    answers: list[RolloutDocument] = []
    failed: list[str] = []
    for number, url in enumerate(front_ends(admin_url)):
        try:
            answers.append(call("GET", url, f"{_PATH}?sums=1", RolloutDocument))
        except EngineError as error:
            if not number:
                raise
            failed.append(str(error))
    total = added_up(answers)
    if json_file is not None:
        write_json(total, json_file)
    else:
        _print(total, len(answers))
    if failed:
        raise EngineError("; ".join(failed))
    return 0


@rollout.command("set")
@click.argument("policy", required=False)
@click.option("--share", metavar="SHARE", help="Of the traffic, such as 5%.  [default: 5% in a new one]")
@click.option("--by", type=click.Choice([by.value for by in By]), help="What goes to one policy as a whole.")
@click.option("--worse-by", metavar="SHARE", help="How much longer times may be before that is worse, such as 5%.")
@click.option("--auto-rollback/--no-auto-rollback", default=None, help="Roll back by itself when it is worse.")
@admin_url_option
def set_rollout(
    policy: str | None,
    share: str | None,
    by: str | None,
    worse_by: str | None,
    auto_rollback: bool | None,
    admin_url: str,
) -> int:
    """Begin a rollout of POLICY, or change the one that runs; what is not named stays. Counts begin anew.

    One that was rolled back runs again.
    """
    wanted = {"policy": policy, "share": share, "by": by, "worse_by": worse_by, "auto_rollback": auto_rollback}
    _put({key: value for key, value in wanted.items() if value is not None}, admin_url)
    return 0


@rollout.command("widen")
@admin_url_option
def widen(admin_url: str) -> int:
    """Go on to the next share: 1, 5, 10, 25, 50, 100 %. Those who have the new policy keep it. Counts begin anew."""
    now = call("GET", admin_url, _PATH, RolloutDocument).rollout
    if now is None:
        raise EngineError("no rollout runs; begin one with `pointsman rollout set POLICY --share 5%`")
    if now.why is not None:
        raise EngineError(
            f"the rollout of {now.policy} was rolled back ({now.why}); to begin it again: "
            f"`pointsman rollout set --share {share_text(now.share)}`"
        )
    share = next((step for step in STEPS if step > now.share + 1e-9), None)
    if share is None:
        raise EngineError(
            f"{now.policy} decides all already; make it the policy: `pointsman policies set {now.policy}`"
        )
    _put({"share": share_text(share)}, admin_url)
    return 0


@rollout.command("back")
@click.option("--reason", default="by hand", show_default=True, help="Shown by `pointsman rollout status`.")
@admin_url_option
def back(reason: str, admin_url: str) -> int:
    """Roll back: the old policy decides all requests from the next one on; requests in flight are not touched."""
    answer, where = tell_all("DELETE", admin_url, _PATH, RolloutDocument, {"reason": reason}, "rolled back")
    if answer.rollout is not None:
        click.echo(f"rolled back: {answer.rollout.base} decides all requests{where}")
    return 0


def _put(body: dict[str, object], admin_url: str) -> None:
    change = f"rollout {', '.join(f'{key} {value}' for key, value in body.items())}"
    answer, where = tell_all("PUT", admin_url, _PATH, RolloutDocument, body, change)
    if answer.rollout is not None:
        click.echo(_sentence(answer.rollout) + (f" ({where.strip()})" if where else ""))


def _sentence(report: RolloutReport) -> str:
    guard = ""
    if report.auto_rollback and report.share == 1.0:
        guard = "; nobody is left to compare it with, so it is rolled back by itself only if its policy fails"
    elif report.auto_rollback:
        guard = f"; rolls back by itself if worse by more than {share_text(report.worse_by)}"
    return f"{report.policy} decides {share_text(report.share)} of all {report.by}s, {report.base} the rest{guard}"


def _print(document: RolloutDocument, count: int) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if document.rollout is None:
        console.print(f"no rollout runs; {document.policy} decides all requests")
    else:
        print_rollout(console, document.rollout, f" ({count} front ends together)" if count > 1 else "")
    print_shadows(console, document.shadows)
