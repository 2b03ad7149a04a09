"""Findings: what the simulations of a consultation showed."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.app.advice.excerpt import Excerpt
from pointsman.app.advice.fleets import Fleet
from pointsman.app.advice.limits import Limit
from pointsman.app.advice.question import Question
from pointsman.app.advice.traffic import Traffic
from pointsman.app.experiments.comparison import BySeed, Comparison
from pointsman.app.experiments.conduct import Results

LEAST_LOADED = "least_loaded"
PLAIN = ("round_robin", LEAST_LOADED)
"""What any load balancer can do."""
DEFAULT = "cost"
"""What decides in a layer where no policy is set."""
AWARE = (DEFAULT, "prefix", "kv")
"""What takes a layer that knows of prompts and caches: the one that nobody has to set, then those to be set instead,
the simpler first."""
TOGETHER, MOVING, APART = "together", "moving", "apart"
"""Workers for both stages whose KV stays; the same where it moves when that pays; the best split, where it does too."""
SPLIT = "split"
"""Stands for the best split among the largest loads."""


@dataclass(slots=True)
class Findings:
    """What was found so far; what is empty or None was not looked at, or not finished."""

    question: Question
    excerpt: Excerpt
    together: Fleet
    traffic: Traffic
    policies: dict[str, BySeed] = field(default_factory=dict)
    """Measures at the load and with the GPUs that were asked about, by policy and seed."""
    comparisons: list[Comparison] = field(default_factory=list)
    plain: str = PLAIN[0]
    """The best of those that any load balancer has."""
    aware: str | None = None
    """The best of those that know what is cached; None: none was tried."""
    loads: dict[str, Limit] = field(default_factory=dict)
    """The largest load by policy, and of the best split under `SPLIT`."""
    sizes: dict[str, Limit] = field(default_factory=dict)
    """Workers needed, of `plain`, of `aware` and of the default."""
    split: Fleet | None = None
    split_policy: str = PLAIN[0]
    split_runs: dict[str, BySeed] = field(default_factory=dict)
    """Measures of the best split, and of the same policy on workers for both stages, by name of the fleet."""
    split_comparisons: list[Comparison] = field(default_factory=list)
    moving: dict[str, BySeed] = field(default_factory=dict)
    """Measures of the policy that decides by request whether KV is moved, under `TOGETHER`, `MOVING` and `APART`."""
    moving_comparisons: list[Comparison] = field(default_factory=list)
    results: Results | None = None
    interrupted: bool = False
