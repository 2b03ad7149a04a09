"""The picture as an SVG that stands alone: a box a rack, a row a node, a square a GPU."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from pointsman.app.placements.picture import Cell, NodePicture, Picture, Rack, Use

PALETTE = ("#2f6fb0", "#d9822b", "#3d9a57", "#a64ca6", "#c23b4b", "#1f9aa8", "#8a6d3b", "#6b6bd6")
"""Told apart by people with any sight of colour when they stand side by side in this order."""
_FILL = {Use.FREE: "#ffffff", Use.OTHERS: "#b9bec5", Use.PARTLY: "#dfe2e6", Use.DOWN: "#f3d9d9"}
_SQUARE, _GAP, _ROW = 12, 2, 17
_NAME = 6.2
"""Width of a letter of a name, about."""
_PAD, _TITLE = 10, 20
_WIDTH = 1180


def svg_of(picture: Picture, title: str) -> str:
    """The document."""
    name_width = _NAME * max((len(node.name) for rack in picture.racks for node in rack.nodes), default=4) + 8
    most = max((len(node.cells) for rack in picture.racks for node in rack.nodes), default=0)
    beside = max((len(node.beside) for rack in picture.racks for node in rack.nodes), default=0)
    titles = max((len(rack.name) for rack in picture.racks), default=0) * 7.0
    more = max((len(f"+{node.more:,}") for rack in picture.racks for node in rack.nodes if node.more), default=0)
    box = max(name_width + (most + beside) * (_SQUARE + _GAP) + more * _NAME + 2 * _PAD, titles + 2 * _PAD)
    columns = max(1, int((_WIDTH - _PAD) // (box + _PAD)))
    parts: list[str] = []
    y = 40.0
    for start in range(0, len(picture.racks), columns):
        line = picture.racks[start : start + columns]
        for column, rack in enumerate(line):
            parts += _rack(rack, picture, _PAD + column * (box + _PAD), y, box, name_width)
        y += max(len(rack.nodes) for rack in line) * _ROW + _TITLE + _PAD + _PAD
    width = max(_PAD + min(columns, max(len(picture.racks), 1)) * (box + _PAD), 640.0)
    parts += _legend(picture, y, width)
    height = y + (_entries(picture) + 2) * 18
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label={quoteattr(title)}>'
    )
    style = (
        "<style>text{font:11px sans-serif;fill:#22262b}.t{font-weight:bold}.h{font:bold 14px sans-serif}"
        ".r{fill:#f7f8fa;stroke:#9aa1a9}.g{stroke:#7d848c;stroke-width:.6}</style>"
    )
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    heading = f'<text class="h" x="{_PAD}" y="24">{escape(title)}</text>'
    return "\n".join([head, style, ground, heading, *parts, "</svg>"]) + "\n"


def _rack(rack: Rack, picture: Picture, x: float, y: float, width: float, name_width: float) -> list[str]:
    height = len(rack.nodes) * _ROW + _TITLE + _PAD
    parts = [
        f'<rect class="r" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>',
        f'<text class="t" x="{x + _PAD:.1f}" y="{y + 15:.1f}">{escape(rack.name)}</text>',
    ]
    for number, node in enumerate(rack.nodes):
        parts += _node(node, picture, x + _PAD, y + _TITLE + number * _ROW + 2, name_width)
    return parts


def _node(node: NodePicture, picture: Picture, x: float, y: float, name_width: float) -> list[str]:
    parts = [f'<text x="{x:.1f}" y="{y + 10:.1f}">{escape(node.name)}</text>']
    at = x + name_width
    for cell in node.cells:
        parts += _cell(cell, picture, at, y)
        at += _SQUARE + _GAP
    for member in node.beside:
        colour = PALETTE[picture.legend[member].colour % len(PALETTE)]
        parts.append(
            f'<circle cx="{at + 6:.1f}" cy="{y + 6:.1f}" r="4" fill="{colour}">{_hint(picture, member)}</circle>'
        )
        at += _SQUARE + _GAP
    if node.more:
        parts.append(f'<text x="{at + 2:.1f}" y="{y + 10:.1f}">+{node.more:,}</text>')
    return parts


def _cell(cell: Cell, picture: Picture, x: float, y: float) -> list[str]:
    if cell.member is None:
        hint = f"<title>{cell.use.value}</title>"
        fill = _FILL[cell.use]
        return [
            f'<rect class="g" x="{x:.1f}" y="{y:.1f}" width="{_SQUARE}" height="{_SQUARE}" fill="{fill}">{hint}</rect>'
        ]
    member = picture.legend[cell.member]
    colour = PALETTE[member.colour % len(PALETTE)]
    height = _SQUARE / 2 if cell.part else _SQUARE
    top = y + _SQUARE - height
    return [
        f'<rect class="g" x="{x:.1f}" y="{y:.1f}" width="{_SQUARE}" height="{_SQUARE}" fill="#ffffff"/>',
        f'<rect class="g" x="{x:.1f}" y="{top:.1f}" width="{_SQUARE}" height="{height:g}" fill="{colour}">'
        f"{_hint(picture, cell.member)}</rect>",
    ]


def _hint(picture: Picture, member: int) -> str:
    who = picture.legend[member]
    return f"<title>{escape(who.gang)} {escape(who.role)}</title>"


def _entries(picture: Picture) -> int:
    return len(picture.legend) + len(Use) + (1 if picture.hidden[0] else 0)


def _legend(picture: Picture, y: float, width: float) -> list[str]:
    parts = []
    entries = [(PALETTE[m.colour % len(PALETTE)], f"{m.gang}: {m.role}") for m in picture.legend]
    entries += [(fill, use.value) for use, fill in _FILL.items()]
    for number, (fill, text) in enumerate(entries):
        at = y + 8 + number * 18
        parts.append(f'<rect class="g" x="{_PAD}" y="{at:.1f}" width="{_SQUARE}" height="{_SQUARE}" fill="{fill}"/>')
        parts.append(f'<text x="{_PAD + 20}" y="{at + 10:.1f}">{escape(text)}</text>')
    racks, nodes = picture.hidden
    if racks:
        at = y + 8 + len(entries) * 18
        text = f"not drawn: {racks:,} more of level {picture.level} ({nodes:,} nodes), where nothing was placed"
        parts.append(f'<text x="{_PAD}" y="{at + 10:.1f}">{escape(text)}</text>')
    return parts
