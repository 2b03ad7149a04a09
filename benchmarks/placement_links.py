"""What closeness is worth: prefill and decode workers at several distances, with the link of that distance, in the
simulator of requests; and where several ways of placing put them on a cluster that is half in use.

usage: scripts/bench placement_links [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.command import carry_out
from harness.noise import NoiseMeter
from peers_placement.kai_like import KaiLike
from peers_placement.pod_by_pod import PodByPod
from pointsman.app.placements.simulation.closeness import handover_shares
from pointsman.app.placements.simulation.scheduler import GangScheduler, Look, Scheduler
from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.worker import Role
from pointsman.core.placement.gang import Gang, Near, RoleGroup
from pointsman.core.placement.made_cluster import MadeCluster, made_cluster
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.links import Link
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

Results = dict[str, Any]
LEVELS = ("node", "rack", "zone")
LINKS = {
    "device": Link("device", 300.0, 0.010),
    "node": Link("node", 200.0, 0.050),
    "rack": Link("rack", 100.0, 0.200),
    "zone": Link("zone", 40.0, 0.500),
}
"""What one transfer has at a distance, as the claim that is tested has them; beyond a zone it is that of the zone."""
SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "pointsman": GangScheduler,
    "greedy gangs": KaiLike,
    "greedy roles": lambda: KaiLike(separate=True),
    "pods, packed": PodByPod,
    "pods, spread": lambda: PodByPod(packed=False),
}
CLAIMED_LOSS = 0.4
"""Of the throughput, across racks."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    profile: str = "h100/llama-70b-tp4"
    prefill: int = 4
    decode: int = 4
    prompts: tuple[int, ...] = (1_000, 8_000, 32_000)
    output_tokens: int = 200
    requests: int = 1_500
    clients: int = 256
    """In the closed loop that throughput is measured with."""
    rate_share: float = 0.7
    """Of the throughput in one node, the load at which times are measured."""
    speeds_gb_s: tuple[float, ...] = (100.0, 40.0, 20.0, 10.0, 5.0, 2.5, 1.25)
    nodes: int = 128
    used_share: float = 0.5
    seeds: int = 5


def traffic(options: Options, prompt_tokens: int, gap_ms: float, seed: int) -> Trace:
    """Requests that share nothing; lengths vary by a quarter, arrivals are a Poisson process."""
    rng = np.random.default_rng([seed, prompt_tokens])
    at_ms = np.cumsum(rng.exponential(gap_ms, options.requests)) if gap_ms else np.zeros(options.requests)
    spread = rng.uniform(0.75, 1.25, (2, options.requests))
    return Trace(
        f"{prompt_tokens} tokens",
        [
            TraceRequest(float(at), max(1, int(prompt_tokens * a)), max(2, int(options.output_tokens * b)))
            for at, a, b in zip(at_ms, *spread, strict=True)
        ],
    )


def setup_of(options: Options, between: Mapping[tuple[int, int], Link]) -> Setup:
    """The deployment, prefill workers first."""
    engine = profile(options.profile)
    groups = (WorkerGroup(engine, options.prefill, Role.PREFILL), WorkerGroup(engine, options.decode, Role.DECODE))
    return Setup(groups, link=LINKS["zone"], links_between=dict(between))


def everywhere(options: Options, link: Link) -> dict[tuple[int, int], Link]:
    """The same link between all pairs."""
    return {
        (prefill, options.prefill + decode): link
        for prefill in range(options.prefill)
        for decode in range(options.decode)
    }


def throughput(options: Options, prompt_tokens: int, between: Mapping[tuple[int, int], Link], seed: int = 0) -> float:
    """Requests a second with as much waiting as there can be."""
    trace = traffic(options, prompt_tokens, 0.0, seed)
    policy = PolicyRegistry().get("least_loaded")
    found = simulate(trace, setup_of(options, between), policy, seed=seed, clients=options.clients)
    return float(found.done.sum()) / (found.ended_ms - found.started_ms) * 1_000


def times(
    options: Options, prompt_tokens: int, between: Mapping[tuple[int, int], Link], rate_s: float, seed: int = 0
) -> dict[str, float]:
    """At a given load: first token, what the handover adds to it, the whole answer."""
    trace = traffic(options, prompt_tokens, 1_000 / rate_s, seed)
    found = simulate(trace, setup_of(options, between), PolicyRegistry().get("least_loaded"), seed=seed)
    moved = found.kv_arrived_ms - found.prefilled_ms
    return {
        "ttft_p50_ms": _quantile(found.ttft_ms, 50),
        "ttft_p99_ms": _quantile(found.ttft_ms, 99),
        "handover_p50_ms": _quantile(moved, 50),
        "handover_p99_ms": _quantile(moved, 99),
        "e2e_p50_ms": _quantile(found.e2e_ms, 50),
        "done_share": _done(found),
    }


def _quantile(values: np.ndarray, percent: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")


def _done(found: Outcome) -> float:
    return float(found.done.mean())


def placed_by(options: Options, scheduler: Scheduler, seed: int) -> tuple[ClusterState, Placement] | None:
    """Where a scheduler puts the deployment on a cluster that is in use in pieces."""
    settings = MadeCluster(options.nodes, nodes_per_rack=8, racks_per_zone=4, used_share=options.used_share)
    cluster, topology = made_cluster(settings, np.random.default_rng(seed))
    gpus = profile(options.profile).tensor_parallel
    pods = Resources(gpus * 1_000, 1_000, 2**30)
    gang = Gang(
        "deployment",
        (
            RoleGroup("prefill", options.prefill, options.prefill, pods, stage="prefill"),
            RoleGroup("decode", options.decode, options.decode, pods, stage="decode"),
        ),
        (Near(("prefill", "decode"), "rack", required=False),),
    )
    state = scheduler.look(Look(ClusterState.of(cluster, topology), [gang], {}, 0.0)).state
    placement = state.placements.get("deployment")
    return None if placement is None or not placement.is_whole else (state, placement)


def links_of(options: Options, state: ClusterState, placement: Placement) -> dict[tuple[int, int], Link]:
    """The link of every pair, by how far it is."""
    rows = {(pod.role, pod.replica): state.row_of[pod.node] for pod in placement.pods}
    found = {}
    for prefill in range(options.prefill):
        for decode in range(options.decode):
            distance = state.domains.distance(rows["prefill", prefill], rows["decode", decode])
            level = LEVELS[min(distance, len(LEVELS) - 1)]
            found[prefill, options.prefill + decode] = LINKS[level]
    return found


def run(options: Options) -> Results:
    """Distances, speeds, placements."""
    noise = NoiseMeter()
    results: Results = {"distances": [], "speeds": [], "placements": []}
    rates: dict[int, float] = {}
    for prompt_tokens in options.prompts:
        for name, link in LINKS.items():
            between = everywhere(options, link)
            most = throughput(options, prompt_tokens, between)
            rates.setdefault(prompt_tokens, most)
            rate_s = rates[prompt_tokens] * options.rate_share
            found = times(options, prompt_tokens, between, rate_s)
            results["distances"].append({"prompt": prompt_tokens, "link": name, "requests_s": most, **found})
            _say(f"{prompt_tokens} tokens, {name}: {most:.2f} requests/s")
        for speed in options.speeds_gb_s:
            most = throughput(options, prompt_tokens, everywhere(options, Link("one", speed, 0.5)))
            results["speeds"].append({"prompt": prompt_tokens, "gb_s": speed, "requests_s": most})
    for name, make in SCHEDULERS.items():
        for seed in range(options.seeds):
            placed = placed_by(options, make(), seed)
            if placed is None:
                results["placements"].append({"scheduler": name, "seed": seed, "placed": False})
                continue
            between = links_of(options, *placed)
            shares = handover_shares(*placed)
            for prompt_tokens in options.prompts:
                rate_s = rates[prompt_tokens] * options.rate_share
                results["placements"].append(
                    {
                        "scheduler": name,
                        "seed": seed,
                        "placed": True,
                        "prompt": prompt_tokens,
                        "shares": shares,
                        "requests_s": throughput(options, prompt_tokens, between, seed),
                        **times(options, prompt_tokens, between, rate_s, seed),
                    }
                )
        _say(name)
    return {
        **results,
        "rates": {str(key): value for key, value in rates.items()},
        "foreign_cores": noise.foreign_cores(),
    }


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def summary(results: Results) -> Mapping[str, Any]:
    """What throughput loses from one node to across racks, and the speed at which it loses as much as is claimed."""
    losses = {}
    for prompt in dict.fromkeys(row["prompt"] for row in results["distances"]):
        rows = {row["link"]: row["requests_s"] for row in results["distances"] if row["prompt"] == prompt}
        losses[str(prompt)] = {
            "across_racks": 1 - rows["zone"] / rows["node"],
            "loses_as_claimed_below_gb_s": _claimed_speed(results, prompt, rows["node"]),
        }
    return losses


def _claimed_speed(results: Results, prompt: int, best: float) -> float | None:
    """The fastest link tried that costs as much as is claimed; None: none of them does."""
    rows = [row for row in results["speeds"] if row["prompt"] == prompt]
    slow = [row["gb_s"] for row in rows if row["requests_s"] <= (1 - CLAIMED_LOSS) * best]
    return max(slow, default=None)


_COLUMNS = (
    ("requests_s", 2),
    ("ttft_p50_ms", 0),
    ("ttft_p99_ms", 0),
    ("handover_p50_ms", 1),
    ("handover_p99_ms", 1),
    ("e2e_p50_ms", 0),
)


def markdown(results: Results) -> str:
    """The tables of the page."""
    return "\n\n".join(
        [
            _distance_text(results),
            _speed_text(results),
            _placement_text(results),
            report.noise_line(results["foreign_cores"]),
        ]
    )


def _distance_text(results: Results) -> str:
    lines = [
        [f"{row['prompt']:,}, {row['link']}", *(report.number(row[key], digits) for key, digits in _COLUMNS)]
        for row in results["distances"]
    ]
    header = [
        *("prompt tokens, all pairs at", "most requests/s", "TTFT P50 ms", "TTFT P99 ms"),
        *("handover P50 ms", "handover P99 ms", "E2E P50 ms"),
    ]
    return (
        "Times at 70 % of the most that one device's link takes. The first token comes from the worker that decodes: "
        f"the handover delays it.\n\n{report.table(header, lines)}"
    )


def _speed_text(results: Results) -> str:
    prompts = list(dict.fromkeys(row["prompt"] for row in results["speeds"]))
    speeds = list(dict.fromkeys(row["gb_s"] for row in results["speeds"]))
    found, lines = summary(results), []
    for prompt in prompts:
        best = next(r["requests_s"] for r in results["distances"] if r["prompt"] == prompt and r["link"] == "node")
        of = {row["gb_s"]: row["requests_s"] / best for row in results["speeds"] if row["prompt"] == prompt}
        lost = found[str(prompt)]
        needs = lost["loses_as_claimed_below_gb_s"]
        lines.append(
            [
                f"{prompt:,}",
                f"{100 * lost['across_racks']:.1f} %",
                *(f"{of[speed]:.0%}" for speed in speeds),
                "none of these" if needs is None else f"{needs:g} GB/s",
            ]
        )
    header = ["prompt tokens", "lost across racks", *(f"{speed:g} GB/s" for speed in speeds), "40 % lost from"]
    return f"Throughput with slower links, of that within a node:\n\n{report.table(header, lines)}"


def _placement_text(results: Results) -> str:
    lines = []
    names = list(dict.fromkeys(row["scheduler"] for row in results["placements"]))
    prompts = sorted({row["prompt"] for row in results["placements"] if row["placed"]})
    for name in names:
        mine = [row for row in results["placements"] if row["scheduler"] == name]
        for prompt in prompts:
            rows = [row for row in mine if row["placed"] and row["prompt"] == prompt]
            if not rows:
                continue
            shares = np.mean([row["shares"] for row in rows], axis=0)
            lines.append(
                [
                    f"{name}, {prompt:,}",
                    f"{shares[0]:.0%}, {shares[1]:.0%}, {shares[2:].sum():.0%}",
                    *(_mean(rows, key, digits) for key, digits in _COLUMNS),
                ]
            )
    header = [
        *("placed by, prompt tokens", "pairs in a node, a rack, further", "most requests/s", "TTFT P50 ms"),
        *("TTFT P99 ms", "handover P50 ms", "handover P99 ms", "E2E P50 ms"),
    ]
    return (
        f"Where ways of placing put it on a cluster half in use, and what that means:\n\n{report.table(header, lines)}"
    )


def _mean(rows: Sequence[Mapping[str, Any]], key: str, digits: int) -> str:
    return report.number(float(np.mean([row[key] for row in rows])), digits)


QUICK = Options(prompts=(8_000,), requests=150, clients=64, speeds_gb_s=(10.0, 2.5), nodes=48, seeds=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one length and few requests, nothing written")
    arguments = parser.parse_args()
    options = QUICK if arguments.quick else Options()
    return carry_out(
        "placement_links",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PLACEMENT_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
