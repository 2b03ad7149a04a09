"""`pointsman policies`: list them, switch between them."""

from __future__ import annotations

import click
import msgspec
from click.core import ParameterSource

from pointsman.app.cli.admin_client import DEFAULT_ADMIN_URL, NoFrontEndError, admin_url_option, call
from pointsman.app.cli.everywhere import tell_all
from pointsman.app.cli.output import json_option, write_json
from pointsman.edge.serving.policies import load_registry


class Policies(msgspec.Struct):
    """What the admin port says of policies; `policy` is None where no front end runs."""

    policy: str | None
    policies: list[str]


@click.group(invoke_without_command=True)
@click.pass_context
def policies(ctx: click.Context) -> None:
    """The policies of a running front end, or those installed; without a verb: list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_policies)


@policies.command("list")
@admin_url_option
@json_option
@click.pass_context
def list_policies(ctx: click.Context, admin_url: str = DEFAULT_ADMIN_URL, json_file: str | None = None) -> int:
    """List the policies; the one in use is marked. Without a front end: those built in and installed."""
    asked_for = ctx.get_parameter_source("admin_url") is ParameterSource.COMMANDLINE
    try:
        answer = call("GET", admin_url, "/v1/policies", Policies)
    except NoFrontEndError:
        if asked_for:
            raise
        click.echo(f"no front end runs at {admin_url}; built in and installed are:", err=True)
        answer = Policies(None, load_registry().names())
    if json_file is not None:
        write_json(answer, json_file)
        return 0
    for name in dict.fromkeys([*answer.policies, *filter(None, [answer.policy])]):
        click.echo(f"{'*' if name == answer.policy else ' '} {name}")
    return 0


@policies.command("set")
@click.argument("name")
@admin_url_option
def set_policy(name: str, admin_url: str) -> int:
    """Decide by policy NAME from now on; requests in flight are not touched.

    All front ends of one `serve --processes` are switched.
    """
    before = call("GET", admin_url, "/v1/policies", Policies).policy
    change = f"policy: {before} → {name}"
    _, where = tell_all("PUT", admin_url, "/v1/policy", Policies, {"policy": name}, change)
    click.echo(f"{change}{where}")
    return 0
