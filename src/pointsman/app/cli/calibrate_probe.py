"""`pointsman calibrate --engine`: says what it will cost, asks the engine, keeps what came before Ctrl-C."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import aiohttp
import click

from pointsman.app.calibration.measurement import Measurement
from pointsman.app.calibration.probe import Probe
from pointsman.app.calibration.probe_plan import SHORT_TOKENS, probe_plan
from pointsman.app.cli.calibrate_output import Status
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.core.model.errors import ConfigError, EngineError, PointsmanError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.timed_completion import CompletionClient

KV_NEEDED = "a profile (--out) must hold that: give --kv-tokens"
_NO_LIMIT = 1 << 30
_ROOM_TOKENS = 256
"""Of the context, for the answer and for words of several tokens."""


@dataclass(frozen=True, slots=True)
class ProbeFlags:
    """What was given."""

    url: str
    model: str | None
    api_key: str | None
    most_tokens: int
    most_seconds: float
    most_prompt: int
    most_sequences: int
    seed: int
    kv_needed: bool
    """The engine must say how much its KV cache holds."""


def probe_engine(flags: ProbeFlags) -> tuple[tuple[Measurement, ...], EngineFacts, bool]:
    """Measure; also what the engine is, and whether the user ended it early. Raises ConfigError, EngineError."""
    run = _ProbeRun(flags)
    run_until_stopped(run.work())
    if run.probe is None or run.facts is None:
        raise click.Abort
    return (run.probe.measured(),), run.facts, run.interrupted


class _ProbeRun:
    def __init__(self, flags: ProbeFlags) -> None:
        try:
            self._url = EngineUrl.parse(flags.url)
        except ValueError as error:
            raise ConfigError(f"--engine {flags.url}: expected {error}") from None
        self._flags = flags
        self.probe: Probe | None = None
        self.facts: EngineFacts | None = None
        self.interrupted = False

    async def work(self) -> int:
        flags = self._flags
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            _, facts = await detect(EngineHttp(session, self._url, api_key=flags.api_key))
            self.facts = facts
            if flags.kv_needed and not facts.kv_capacity_tokens:
                raise ConfigError(f"{self._url} does not say how much its KV cache holds; {KV_NEEDED}")
            plan = probe_plan(
                most_prompt_tokens=min(flags.most_prompt, _longest_prompt(facts)),
                most_sequences=flags.most_sequences,
                most_tokens=flags.most_tokens,
            )
            click.echo(f"{self._url}: {facts.describe()}", err=True)
            click.echo(
                f"sending {plan.requests} requests, about {plan.tokens:,} tokens, for {flags.most_seconds:g} s at "
                "most; nothing else should use the engine meanwhile",
                err=True,
            )
            client = CompletionClient(session, self._url, _model(flags.model, facts), api_key=flags.api_key)
            probe = Probe(client, plan, random.Random(flags.seed), most_s=flags.most_seconds)
            self.probe = probe
            with Status() as status:
                try:
                    await probe.run(lambda done: status.show(f"measuring: {done} of {plan.requests} requests"))
                except asyncio.CancelledError:
                    # Ctrl-C: what has come is used.
                    self.interrupted = True
                except BaseExceptionGroup as errors:
                    raise _first(errors, len(probe.answers), plan.requests) from errors
            if probe.timed_out:
                click.echo(f"the time was over after {len(probe.answers)} of {plan.requests} requests", err=True)
        return 0


def _longest_prompt(facts: EngineFacts) -> int:
    """What goes into the engine's context, however many tokens its words have."""
    if facts.max_context_tokens is None:
        return _NO_LIMIT
    room = facts.max_context_tokens * 3 // 4 - _ROOM_TOKENS
    if room < SHORT_TOKENS:
        raise EngineError(
            f"the engine's context of {facts.max_context_tokens} tokens is too short to be measured; "
            f"{(SHORT_TOKENS + _ROOM_TOKENS) * 4 // 3 + 1} are needed"
        )
    return room


def _model(wanted: str | None, facts: EngineFacts) -> str:
    if wanted is not None and facts.models and wanted not in facts.models:
        raise ConfigError(f"--model {wanted}: the engine serves {', '.join(facts.models)}")
    if wanted is not None:
        return wanted
    own = [name for name in facts.models if name not in facts.lora]
    if not own:
        raise ConfigError("the engine does not say which models it serves; give --model")
    return own[0]


def _first(errors: BaseExceptionGroup[BaseException], answered: int, asked: int) -> BaseException:
    known = errors.subgroup(PointsmanError)
    found: BaseException = known if known is not None else errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return EngineError(f"{found}; {answered} of {asked} requests were answered before") if known and answered else found
