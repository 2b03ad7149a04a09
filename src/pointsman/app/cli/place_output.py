"""What `pointsman place` prints: where each replica goes, a picture of the racks, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pointsman.app.cli.place_document import domains_of_node
from pointsman.app.placements.in_order import Planned
from pointsman.app.placements.picture import Cell, NodePicture, Picture, Use, picture_of
from pointsman.core.placement.plan import BudgetSpent, Gap, Missing, Placement, PodPlace, Reason, Unplaced
from pointsman.core.placement.resources import shown, shown_gib
from pointsman.core.placement.state import ClusterState

_MOST_ROWS = 40
_MOST_RACKS = 40
_COLOURS = ("bright_blue", "yellow", "green", "magenta", "red", "cyan", "bright_yellow", "bright_magenta")
_SIGNS = {Use.FREE: "·", Use.OTHERS: "#", Use.PARTLY: "+", Use.DOWN: "x"}
_PIPE_WIDTH = 140


def print_planned(planned: Planned, models: Mapping[str, str | None]) -> None:
    """All deployments in the order they were tried, then the picture."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
        console.soft_wrap = True  # whoever reads a pipe wants whole sentences
    console.print(_cluster(planned.before))
    for answer in planned.answers:
        console.print()
        model = models.get(answer.gang.name)
        name = f"[bold]{escape(answer.gang.name)}[/bold]" + (f" ({escape(model)})" if model else "")
        if isinstance(answer, Placement):
            _print_placed(console, planned.before, answer, name, answer.gang.name in planned.held_back)
        else:
            _print_unplaced(console, answer, name)
    if planned.placed:
        console.print()
        _print_picture(console, picture_of(planned.after, planned.placed))


def _cluster(state: ClusterState) -> str:
    down = len(state.nodes) - int(state.up.sum())
    gpus = sum(node.gpus for node in state.nodes)
    free = int(state.gpu_free_milli[state.up].sum()) / 1000
    levels = ", ".join(state.topology.names)
    without = f" ({down:,} down or cordoned)" if down else ""
    return (
        f"{counted(len(state.nodes), 'node')}{without}, {counted(gpus, 'GPU')}, {free:,.10g} of them free; "
        f"levels, near to far: {escape(levels)}"
    )


def _print_placed(console: Console, state: ClusterState, placement: Placement, name: str, is_held_back: bool) -> None:
    if not placement.pods:
        why = (
            "its queue may have none of its elastic replicas"
            if is_held_back
            else "time ran out before its elastic replicas were tried; --budget gives more"
            if placement.growth_cut_short
            else "none of its elastic replicas has room"
        )
        console.print(f"{name}: nothing of it is placed: its floors are 0, and {why}")
        return
    spread = ", ".join(counted(each.domains, each.level) for each in placement.spread)
    console.print(f"{name}: placed on {escape(spread)}; {_statement(placement)} ({placement.elapsed_s:.2f} s)")
    elastic = [
        f"{group.name} {placement.replicas[group.name]} of {group.max_replicas} (floor {group.min_replicas})"
        for group in placement.gang.groups
        if group.max_replicas > group.min_replicas
    ]
    if elastic:
        end = f"; queue {placement.gang.queue} may have no more" if is_held_back else ""
        end += "; time ran out before more were tried, --budget gives more" if placement.growth_cut_short else ""
        console.print(f"  elastic replicas: {escape(', '.join(elastic) + end)}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, side in (("role", "left"), ("replica", "right"), ("node", "left"), ("GPUs", "left")):
        table.add_column(title, justify="right" if side == "right" else "left", no_wrap=True)
    levels = state.topology.names[1:]
    for level in levels:
        table.add_column(escape(level), no_wrap=True)
    rows = _rows(placement)
    for role, replicas, node, gpus in rows[:_MOST_ROWS]:
        domains = domains_of_node(state, node)
        table.add_row(role, replicas, escape(node), gpus, *(escape(domains.get(level, "-")) for level in levels))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if len(rows) > _MOST_ROWS:
        console.print(f"  … {len(rows) - _MOST_ROWS:,} more lines; --json has all")


def counted(count: int, what: str) -> str:
    """`1 node`, `2,000 switches`."""
    plural = "es" if what.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {what}{plural if count != 1 else ''}"


def _statement(placement: Placement) -> str:
    statement = placement.statement
    if isinstance(statement, Gap):
        return f"at most {statement.cost} above the least spread there can be, {placement.bound}"
    if isinstance(statement, BudgetSpent):
        return "time ran out before anything was proved about how good it is; --budget gives more"
    return "optimal, nothing has less spread"


def _rows(placement: Placement) -> list[tuple[str, str, str, str]]:
    """A line for the pods of a role on a node: replicas, GPUs."""
    together: dict[tuple[str, str], list[PodPlace]] = {}
    for pod in placement.pods:
        together.setdefault((pod.role, pod.node), []).append(pod)
    several = {group.name: group.pods_per_replica > 1 for group in placement.gang.groups}
    order = {group.name: number for number, group in enumerate(placement.gang.groups)}
    lines = sorted(together.items(), key=lambda item: (order[item[0][0]], item[1][0].replica, item[1][0].pod))
    found = []
    for (role, node), pods in lines:
        if several[role]:
            replicas = ", ".join(f"{number}.{_runs(parts)}" for number, parts in _by_replica(pods))
        else:
            replicas = _runs([pod.replica for pod in pods])
        found.append((escape(role), replicas, node, _runs([d for pod in pods for d in pod.devices]) or "-"))
    return found


def _by_replica(pods: list[PodPlace]) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for pod in pods:
        found.setdefault(pod.replica, []).append(pod.pod)
    return sorted(found.items())


def _runs(numbers: list[int]) -> str:
    """0, 1, 2, 5 as 0-2, 5."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _print_unplaced(console: Console, answer: Unplaced, name: str) -> None:
    sure = "" if answer.proved else " (not proved: time ran out)"
    console.print(f"{name}: [bold red]not placed[/bold red]: {answer.reason.value}{sure} ({answer.elapsed_s:.2f} s)")
    console.print(f"  {escape(answer.text)}")
    tightest = answer.tightest
    if tightest is not None and tightest.missing:
        console.print(f"  nearest, {escape(tightest.level)} {escape(tightest.domain)}:")
        for missing in tightest.missing:
            console.print(f"    {escape(_missing(missing))}")
    else:
        for missing in answer.missing:
            console.print(f"    {escape(_missing(missing))}")
    if answer.reason is not Reason.NODE_UNFIT:
        for line in _left_out(answer.unfit):
            console.print(f"  {escape(line)}")
    for number, change in enumerate(answer.changes):
        console.print(f"  {'it would fit:' if number == 0 else '          or:'} {escape(change.text)}")


def _left_out(unfit: Sequence[tuple[str, str, int]]) -> list[str]:
    """Nodes that are not counted for a role, a line for roles that leave out the same."""
    whys: dict[str, list[str]] = {}
    for role, why, count in unfit:
        whys.setdefault(role, []).append(f"{why} ({counted(count, 'node')})")
    roles: dict[str, list[str]] = {}
    for role, parts in whys.items():
        roles.setdefault(", ".join(parts), []).append(role)
    return [f"left out for {', '.join(names)}: {text}" for text, names in roles.items()]


def _missing(missing: Missing) -> str:
    lacks = missing.lacks
    parts = [
        f"{shown(lacks.gpus)} GPU{'s' * (lacks.gpus > 1)}" if lacks.gpu_milli else "",
        f"{shown(lacks.cpu_milli / 1000)} CPU{'s' * (lacks.cpu_milli > 1000)}" if lacks.cpu_milli else "",
        shown_gib(lacks.memory_bytes) if lacks.memory_bytes else "",
    ]
    what = ", ".join(part for part in parts if part)
    return f"{missing.role}: {missing.fits_replicas} of {missing.wanted_replicas} replicas fit" + (
        f"; the others ask for {what}" if what else ""
    )


def _print_picture(console: Console, picture: Picture) -> None:
    widest = max((len(node.name) for rack in picture.racks for node in rack.nodes), default=0)
    for number, rack in enumerate(picture.racks):
        if number == _MOST_RACKS:
            console.print(
                f"… {len(picture.racks) - _MOST_RACKS:,} more of level {escape(picture.level)}; --svg has all"
            )
            break
        console.print(f"[bold]{escape(rack.name)}[/bold]")
        line = Text("  ")
        for node in rack.nodes:
            drawn = _node(node, picture, widest)
            if len(line) > 2 and len(line) + len(drawn) > console.width:
                line.rstrip()
                console.print(line)
                line = Text("  ")
            line.append_text(drawn)
        line.rstrip()
        console.print(line)
    line = Text()
    for member in picture.legend:
        entry = Text(f" {member.letter} ", style=f"black on {_COLOURS[member.colour % len(_COLOURS)]}")
        entry = Text.assemble(entry, f" {member.gang}: {member.role}   ")
        if len(line) and len(line) + len(entry) - 3 > console.width:
            line.rstrip()
            console.print(line)
            line = Text()
        line.append_text(entry)
    line.rstrip()
    console.print(line)
    console.print(escape("   ".join(f"{sign} {use.value}" for use, sign in _SIGNS.items())))
    if any(cell.part for rack in picture.racks for node in rack.nodes for cell in node.cells):
        console.print("A small letter has a part of the GPU.")
    racks, nodes = picture.hidden
    if racks:
        console.print(
            f"Not drawn: {racks:,} of level {escape(picture.level)} ({nodes:,} nodes), nothing was placed there."
        )


def _node(node: NodePicture, picture: Picture, widest: int) -> Text:
    text = Text(f"{node.name:<{widest}} ", style="")
    for cell in node.cells:
        text.append_text(_cell(cell, picture))
    for member in node.beside:
        who = picture.legend[member]
        text.append(who.letter, style=_COLOURS[who.colour % len(_COLOURS)])
    if node.more:
        text.append(f"+{node.more:,}")
    text.append("   ")
    return text


def _cell(cell: Cell, picture: Picture) -> Text:
    if cell.member is None:
        return Text(_SIGNS[cell.use], style="dim")
    who = picture.legend[cell.member]
    letter = who.letter.lower() if cell.part else who.letter
    return Text(letter, style=f"black on {_COLOURS[who.colour % len(_COLOURS)]}")
