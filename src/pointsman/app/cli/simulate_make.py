"""`--make SPEC`: traffic that is made anew for each seed, in the words of `pointsman trace make`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from pointsman.app.cli.trace_make import KINDS, make
from pointsman.app.experiments.workload import Made
from pointsman.core.model.errors import ConfigError
from pointsman.core.workload.trace import Trace

_NOWHERE = "-"


@dataclass(frozen=True, slots=True)
class _Maker:
    """Settings and generator; goes into other processes."""

    settings: Any
    generate: Callable[[Any, np.random.Generator], Trace]
    first_seed: int
    most_requests: int | None

    def __call__(self, seed: int) -> Trace:
        trace = self.generate(self.settings, np.random.default_rng(self.first_seed + seed))
        return trace if self.most_requests is None else replace(trace, requests=trace.requests[: self.most_requests])


def made_workload(spec: str, most_requests: int | None = None) -> Made:
    """The workload that `spec` describes: a kind and its options, `chat --arrivals 2 --sessions 100`.

    The first seed is the spec's `--seed`, so one run has the trace that `pointsman trace make` makes. Raises
    ConfigError, or click's own errors for options that are wrong.
    """
    try:
        kind, *arguments = shlex.split(spec) or [""]
    except ValueError as error:
        raise ConfigError(f"--make {spec!r}: {error}; write KIND --option VALUE …") from None
    if kind not in KINDS:
        raise ConfigError(f"--make {spec!r}: {kind!r} is no kind of workload; there are {', '.join(KINDS)}")
    settings_type, generate, _ = KINDS[kind]
    try:
        values = dict(make.commands[kind].make_context(f"--make {kind}", [*arguments, _NOWHERE]).params)
    except click.ClickException as error:
        raise ConfigError(
            f"--make {spec!r}: {error.format_message().rstrip('.')}; see pointsman trace make {kind} --help"
        ) from None
    del values["out"]
    first_seed = values.pop("seed")
    return Made(kind, _Maker(settings_type(**values), generate, first_seed, most_requests))
