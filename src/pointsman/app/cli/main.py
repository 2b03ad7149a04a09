"""The command `pointsman`: finds the verb, runs it, turns errors into one line."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from pointsman.core.model.errors import PointsmanError

_VERBS = {
    "up": "A whole fleet on this computer: engines and the front end.",
    "serve": "The front end before engines that already run.",
    "engine": "One engine as a server.",
    "node": "What runs beside engines on each machine: it measures links.",
    "calibrate": "How fast an engine is: from its results, or by asking it.",
    "simulate": "Compare policies and fleets on a trace, before anything is switched on.",
    "advise": "What to do with a workload and so many GPUs, in plain words.",
    "status": "What a running front end knows: workers, load, cache hits, reasons.",
    "reload": "The configuration of running front ends, read again; or all of them replaced one by one.",
    "explain": "Why a worker got a request, what came true, and whether load is uneven.",
    "doctor": "What configurations silently get wrong: links between machines.",
    "policies": "The policies of a running front end; switch between them.",
    "rollout": "A new policy for a share of the traffic: begin, watch, widen, roll back.",
    "place": "Where deployments go on a cluster, whole and close together, or why not.",
    "convert": "Dynamo's deployments to files that place reads.",
    "trace": "Traces of traffic: statistics, made ones, parts and multiples.",
    "keys": "API keys: make them, check a file of them.",
    "version": "The version.",
}
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Verbs(click.Group):
    """One file a verb, imported when it is asked for: `version` must not wait for what `serve` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = getattr(importlib.import_module(f"pointsman.app.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Directs the traffic of LLM inference: which engine computes what, and why."""


def main() -> None:
    """Entry point; ends the process with 0, 2 for an error that is explained in one line, 130 for an interrupt."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal of another encoding can't show is a question mark there, no error.
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one verb; the exit status."""
    try:
        result = cli.main(arguments, prog_name="pointsman", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_ERROR
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PointsmanError as error:
        click.echo(f"pointsman: {error}".replace("\n", " "), err=True)
        return EXIT_ERROR
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; closing stdout again must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
