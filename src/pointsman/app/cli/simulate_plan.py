"""From the flags of `pointsman simulate` to the experiment that they ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from pointsman.app.cli.simulate_make import made_workload
from pointsman.app.experiments.fleet import Profiles, Size, groups, parse_profiles, parse_size
from pointsman.app.experiments.oversize import cut_note, oversize_note
from pointsman.app.experiments.plan import Experiment, Point, entries
from pointsman.app.experiments.slo import duration_ms, parse_slo
from pointsman.app.experiments.sweep import Base, Sweep, parse_sweep
from pointsman.app.experiments.workload import Recorded, Workload, requests_s
from pointsman.app.simulate.setup import Setup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.transfer import TransferMode
from pointsman.core.timing.links import link
from pointsman.core.workload.trace import Trace
from pointsman.edge.serving.policies import load_registry
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.profile_file import load_profile

DEFAULT_NOISE = 0.03
_FACTOR = re.compile(r"[x×]?([0-9]*\.?[0-9]+)")
_ABSOLUTE = re.compile(r"([0-9]*\.?[0-9]+)\s*/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """What was given on the command line; None: not given."""

    trace: Path | None
    make_spec: str | None = None
    trace_format: str | None = None
    workers: str
    profile: str
    policies: str
    seeds: int = 5
    slo: str | None = None
    rate: str | None = None
    clients: int | None = None
    requests: int | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    max_context_tokens: int | None = None
    kv_events: bool | None = None
    metrics_every: str | None = None
    front_end_ms: float | None = None
    kv_transfer: str | None = None
    link: str | None = None
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be done, and what somebody should know about it."""

    experiment: Experiment
    sweep: Sweep | None
    notes: tuple[str, ...]


def plan(flags: SimulateFlags, sweep_text: str | None) -> Planned:
    """Read and check everything. Raises ConfigError, TraceError or PolicyError, before anything runs."""
    profiles, size = parse_profiles(flags.profile, load_profile), parse_size(flags.workers)
    slo = None if flags.slo is None else parse_slo(flags.slo)
    setup = _setup(flags, profiles, size)
    registry = load_registry()
    names = [name.strip() for name in flags.policies.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--policy {flags.policies!r}: name at least one; there are {', '.join(registry.names())}")
    policies = entries(registry.get(name) for name in names)
    workload, notes = _workload(flags)
    trace = workload.trace(0)
    if not len(trace):
        raise ConfigError(f"{workload.name}: there is no request in it")
    setup.blocks_for(trace.block_tokens)
    point = Point(setup, _factor(flags, trace), flags.clients)
    base = Base(
        at=point,
        size=size,
        resize=lambda other: replace(point, setup=replace(setup, groups=groups(profiles, other))),
        requests_s=requests_s(trace),
        mixed_profiles=profiles.both is None,
    )
    if sweep_text is not None and sweep_text.strip().endswith("/s"):
        _refuse_if_waiting(trace, f"--sweep {sweep_text}")
    sweep = None if sweep_text is None else parse_sweep(sweep_text, base)
    if sweep is not None:
        _refuse_twice(flags, sweep.axis, f"--sweep {sweep_text}")
    if sweep is not None and sweep.ordered and slo is None:
        notes.append("a sweep shows its knee where there is an SLO to keep (--slo ttft=2s,tpot=50ms)")
    points = (point,) if sweep is None else sweep.points()
    setups = [each.setup for each in points]
    notes.extend(note for note in (oversize_note(trace, setups), cut_note(trace, setups)) if note is not None)
    experiment = Experiment(workload, policies, points, flags.seeds, slo)
    return Planned(experiment, sweep, tuple(notes))


def _setup(flags: SimulateFlags, profiles: Profiles, size: Size) -> Setup:
    given = {
        name: value
        for name in ("block_tokens", "max_num_seqs", "max_batched_tokens", "max_context_tokens", "front_end_ms")
        if (value := getattr(flags, name)) is not None
    }
    if flags.kv_events is not None:
        given["kv_events"] = flags.kv_events
    if flags.metrics_every is not None:
        text = flags.metrics_every
        zero = re.fullmatch(r"0+(\.0+)?\s*(ms|s)?", text)
        every_ms = 0.0 if zero else duration_ms(text, "--metrics-every")
        if 0 < every_ms < 1:
            raise ConfigError(f"--metrics-every {text}: at least 1ms is expected, or 0s for before each decision")
        given["metrics_every_ms"] = every_ms
    if flags.kv_transfer is not None:
        given["kv_transfer"] = TransferMode(flags.kv_transfer)
    if flags.link is not None:
        given["link"] = link(flags.link)
    noise = flags.noise
    given["step_noise"] = noise if noise is not None else DEFAULT_NOISE if flags.seeds > 1 else 0.0
    return Setup(groups=groups(profiles, size), **given)


def _workload(flags: SimulateFlags) -> tuple[Workload, list[str]]:
    if (flags.trace is None) == (flags.make_spec is None):
        raise ConfigError(
            "--trace or --make: give one, a file with recorded traffic (docs/traces.md says which formats are read) "
            "or what is to be made, such as 'chat --arrivals 2 --sessions 100'"
        )
    if flags.trace is None:
        assert flags.make_spec is not None
        if flags.trace_format is not None:
            raise ConfigError(f"--format {flags.trace_format}: traffic that is made has none; it goes with --trace")
        return made_workload(flags.make_spec, flags.requests), []
    loaded = read_trace(flags.trace, flags.trace_format)
    trace = loaded.trace
    if flags.requests is not None:
        trace = replace(trace, requests=trace.requests[: flags.requests])
    return Recorded(trace, perturb=flags.seeds > 1), loaded.problems.describe()


def _factor(flags: SimulateFlags, trace: Trace) -> float:
    if flags.rate is None:
        return 1.0
    if flags.clients is not None:
        raise ConfigError("--rate and --clients: with clients the rate is what they ask for; choose one")
    absolute, factor = _ABSOLUTE.fullmatch(flags.rate.strip()), _FACTOR.fullmatch(flags.rate.strip())
    value = float((absolute or factor or [0, 0])[1])
    if value <= 0:
        raise ConfigError(f"--rate {flags.rate}: write ×1.5 (or 1.5) for so many times as fast, or 12/s")
    if absolute is None:
        return value
    _refuse_if_waiting(trace, f"--rate {flags.rate}")
    recorded = requests_s(trace)
    if not recorded:
        raise ConfigError(f"--rate {flags.rate}: all requests of this trace come at once, so it has no rate")
    return value / recorded


def _refuse_twice(flags: SimulateFlags, axis: str, option: str) -> None:
    """What the points of a sweep set can't be set for all of them too."""
    if axis in ("rate", "clients") and flags.rate is not None:
        raise ConfigError(f"{option} and --rate {flags.rate}: the sweep says what load there is; leave out --rate")
    if axis == "clients" and flags.clients is not None:
        raise ConfigError(f"{option} and --clients {flags.clients}: the sweep says how many; leave out --clients")


def _refuse_if_waiting(trace: Trace, option: str) -> None:
    """Turns come when answers and people allow, so nobody can ask for so many requests a second."""
    if any(request.after is not None for request in trace.requests):
        raise ConfigError(
            f"{option}: requests of {trace.name} wait for answers, so only how fast conversations begin can be set; "
            "write ×2 for twice as fast"
        )
