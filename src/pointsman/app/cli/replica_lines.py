"""Other front ends of the fleet, as `pointsman status` shows them: a line for all, and one for each trouble."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from pointsman.edge.serving.replica_report import ReplicaReport, ReplicasReport


def print_replicas(console: Console, replicas: ReplicasReport) -> None:
    """Who is there, what they have, and what is not known of them."""
    others = replicas.others
    if not others:
        console.print("[yellow]other front ends: none is heard[/yellow]")
    else:
        console.print(f"other front ends: {len(others)}: " + ", ".join(escape(_one(other)) for other in others))
    if replicas.trouble is not None:
        console.print(f"[red]other front ends may not be found: {escape(replicas.trouble)}[/red]")


def _one(other: ReplicaReport) -> str:
    requests = f"{other.requests} request{'' if other.requests == 1 else 's'}"
    if not other.complete:
        return f"{other.name} (asked for all that it has)"
    lost = f", lost messages {other.gaps} ×" if other.gaps else ""
    return f"{other.name} ({requests}, heard {other.silent_ms / 1000:.1f} s ago{lost})"
