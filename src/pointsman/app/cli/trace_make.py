"""`pointsman trace make`: workloads from random numbers. The options of each kind are the fields of its settings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import click
import numpy as np

from pointsman.app.cli.trace_files import save, say_problems
from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.agents import Agents, agents
from pointsman.core.workload.generators.arrivals import Arrivals
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.generators.distributions import Distribution, Histogram
from pointsman.core.workload.generators.independent import Independent, independent
from pointsman.core.workload.generators.rag import Rag, rag
from pointsman.core.workload.generators.shared_prefix import Order, SharedPrefix, shared_prefix
from pointsman.core.workload.generators.spec import (
    ARRIVALS,
    DISTRIBUTIONS,
    describe,
    parse_arrivals,
    parse_distribution,
)
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.formats import read_trace

_LIKE = "like:"
KINDS: dict[str, tuple[Any, Callable[[Any, np.random.Generator], Trace], str]] = {
    "chat": (Chat, chat, "Conversations: a shared system prompt, then turns that repeat all before."),
    "agents": (Agents, agents, "Agents: a long shared prompt, then tool calls whose results pile up."),
    "rag": (Rag, rag, "Retrieval: popular documents in front of a question."),
    "shared-prefix": (SharedPrefix, shared_prefix, "Groups of users with a long system prompt in common (llm-d's)."),
    "independent": (Independent, independent, "Arrivals and lengths; prompts have nothing in common."),
}
"""Settings, generator and help by kind."""
_HELP = {
    "system_prompts": "Different system prompts; 0: none.",
    "zipf": "Exponent of popularity: 0 is uniform, 1 is Zipf's law.",
    "system_tokens": "Of what many share at the start.",
    "turns": "Requests of a session.",
    "user_tokens": "Of a question.",
    "output_tokens": "Of an answer.",
    "think_ms": "Before a person goes on.",
    "most_tokens": "Most tokens of a prompt and its answer.",
    "block_tokens": "Tokens a block.",
    "kinds": "Of agents: different shared prompts.",
    "tasks": "Of an agent's run.",
    "steps": "Requests of a task.",
    "task_tokens": "Of a person's wish.",
    "result_tokens": "Of a tool.",
    "tool_ms": "That a tool takes.",
    "summary_tokens": "That a context which gets too long is replaced by.",
    "documents": "Different ones.",
    "documents_a_request": "Documents in a prompt.",
    "popular_first": "Documents stand in the order of popularity, or as drawn.",
    "document_tokens": "Of a document.",
    "question_tokens": "Of a question.",
    "groups": "With a system prompt each.",
    "users": "Of a group.",
    "order": "Who asks: all in one shuffled order again and again, in a new order each time, or drawn.",
    "prompt_tokens": "Of a prompt.",
    "sessions": "Most sessions.",
    "requests": "Most requests.",
    "duration_s": "Arrivals end after that time.",
}


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    """A callback for an option whose text is parsed so."""

    def convert(ctx: click.Context, param: click.Parameter, text: str) -> Any:
        try:
            return parse(text)
        except TraceError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return convert


def _distribution(outputs: bool) -> Callable[[str], Distribution]:
    def parse(text: str) -> Distribution:
        return _like(Path(text.removeprefix(_LIKE)), outputs) if text.startswith(_LIKE) else parse_distribution(text)

    return parse


def _like(file: Path, outputs: bool) -> Histogram:
    """The lengths of a trace, as they are distributed there."""
    loaded = read_trace(file)
    say_problems(file, loaded.problems)
    requests = loaded.trace.requests
    return Histogram(Counter(float(r.output_tokens if outputs else r.prompt_tokens) for r in requests))


@click.group()
def make() -> None:
    """Make a trace: chat, agents, rag, shared-prefix or independent.

    Lengths and times take NUMBER, uniform:LOW,HIGH, exponential:MEAN, lognormal:MEAN,CV[,LOW,HIGH],
    histogram:VALUE=WEIGHT,… or like:TRACE, the lengths of a trace's prompts (of its outputs for --output-tokens).
    """


def _command(name: str) -> click.Command:
    settings_type, generate, text = KINDS[name]

    def run(out: Path, seed: int, **values: Any) -> int:
        settings = settings_type(**values)
        save(generate(settings, np.random.default_rng(seed)), out)
        return 0

    command = click.Command(name, callback=run, help=text + f"\n\nArrivals are {ARRIVALS}; lengths {DISTRIBUTIONS}.")
    command.params = [
        click.Argument(["out"], type=click.Path(path_type=Path)),
        *(_option(field, get_type_hints(settings_type)[field.name]) for field in dataclasses.fields(settings_type)),
        click.Option(["--seed"], type=click.IntRange(min=0), default=0, show_default=True),
    ]
    return command


def _option(field: dataclasses.Field[Any], kind: Any) -> click.Option:
    flag = "--" + field.name.replace("_", "-")
    text = _HELP.get(field.name, "")
    default: Any = field.default
    if kind is Arrivals:
        return click.Option(
            [flag], required=True, callback=_parsed(parse_arrivals), help="When they come; a number is Poisson."
        )
    if kind is Distribution:
        parse = _parsed(_distribution(field.name == "output_tokens"))
        return click.Option([flag], default=describe(default), show_default=True, callback=parse, help=text)
    if kind is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=default, show_default=True, help=text)
    if kind is Order:
        choice = click.Choice([order.value for order in Order])
        return click.Option(
            [flag], type=choice, default=default.value, show_default=True, callback=_parsed(Order), help=text
        )
    limits = click.FloatRange(min=0) if kind in (float, float | None) else click.IntRange(min=0)
    return click.Option([flag], type=limits, default=default, show_default=default is not None, help=text)


for _name in KINDS:
    make.add_command(_command(_name))
