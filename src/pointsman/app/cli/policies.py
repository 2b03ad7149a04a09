"""`pointsman policies`: list them, switch between them."""

from __future__ import annotations

import click
import msgspec

from pointsman.app.cli.admin_client import admin_url_option, call
from pointsman.app.cli.output import json_option, write_json


class Policies(msgspec.Struct):
    """What the admin port says of policies."""

    policy: str
    policies: list[str]


@click.group(invoke_without_command=True)
@click.pass_context
def policies(ctx: click.Context) -> None:
    """The policies of a running front end; without a verb: list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_policies)


@policies.command("list")
@admin_url_option
@json_option
def list_policies(admin_url: str = "http://127.0.0.1:8081", json_file: str | None = None) -> int:
    """List the policies; the one in use is marked."""
    answer = call("GET", admin_url, "/v1/policies", Policies)
    if json_file is not None:
        write_json(answer, json_file)
        return 0
    for name in answer.policies:
        click.echo(f"{'*' if name == answer.policy else ' '} {name}")
    if answer.policy not in answer.policies:
        click.echo(f"* {answer.policy}")
    return 0


@policies.command("set")
@click.argument("name")
@admin_url_option
def set_policy(name: str, admin_url: str) -> int:
    """Decide by policy NAME from now on; requests in flight are not touched."""
    before = call("GET", admin_url, "/v1/policies", Policies).policy
    after = call("PUT", admin_url, "/v1/policy", Policies, {"policy": name}).policy
    click.echo(f"policy: {before} → {after}")
    return 0
