"""How a template wants a message's content: as one string, or as the list of parts that the OpenAI API has.

Engines look for a loop over the content in the template's syntax tree. The rules are theirs (vLLM's
`--chat-template-content-format auto`, SGLang's detection), blind spots included: the point is to agree with them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from jinja2 import nodes


class ContentFormat(enum.StrEnum):
    """What `message.content` is for the template."""

    STRING = "string"
    PARTS = "openai"


_MEDIA_WORDS = ("image", "audio", "video", "vision")
_SGLANG_MESSAGE_NAMES = ("message", "msg", "m")


class _Unexpected(Exception):  # noqa: N818
    """A target that is no plain name: vLLM's detection gives up there."""


def vllm_content_format(tree: nodes.Template) -> ContentFormat:
    """As vLLM detects it: a loop over the content of what a loop over `messages` (or a slice of it) yields."""
    try:
        found = any(True for _ in _content_loops(tree))
    except _Unexpected:
        return ContentFormat.STRING
    return ContentFormat.PARTS if found else ContentFormat.STRING


def sglang_content_format(tree: nodes.Template, source: str) -> ContentFormat:
    """As SGLang detects it: a word of multimodality anywhere, or a loop over the content of a usual name."""
    if any(word in source for word in _MEDIA_WORDS):
        return ContentFormat.PARTS
    loops = tree.find_all(nodes.For)
    if any(_is_member(loop.iter, name, "content") for loop in loops for name in _SGLANG_MESSAGE_NAMES):
        return ContentFormat.PARTS
    return ContentFormat.STRING


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _message_names(tree)
    by_macro = {id(loop): _content_parameters(macro, tree, messages) for macro, loop in _macro_loops(tree)}
    for loop in tree.find_all(nodes.For):
        if any(_is_member(loop.iter, name, "content") for name in messages):
            yield _named(loop)
        elif isinstance(loop.iter, nodes.Name):
            names = by_macro.get(id(loop), {"content"})
            if loop.iter.name in names:
                yield _named(loop)


def _macro_loops(tree: nodes.Template) -> Iterator[tuple[nodes.Macro, nodes.For]]:
    for macro in tree.find_all(nodes.Macro):
        for loop in macro.find_all(nodes.For):
            yield macro, loop


def _content_parameters(macro: nodes.Macro, tree: nodes.Template, messages: list[str]) -> set[str]:
    """Parameters of a macro that some call gives a message's content."""
    parameters = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = list(zip(parameters, call.args, strict=False))
        given += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in parameters]
        found.update(name for name, value in given if any(_is_member(value, m, "content") for m in messages))
    return found


def _message_names(tree: nodes.Template) -> list[str]:
    """Names of loops over `messages`, or over what was assigned from it."""
    sources = _aliases(tree, "messages")
    loops = [loop for loop in tree.find_all(nodes.For) if any(_is_name(loop.iter, name) for name in sources)]
    return [_target_name(loop.target) for loop in loops]


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    names = [name]
    for known in names:  # grows while it is walked
        for assign in tree.find_all(nodes.Assign):
            if _is_name(assign.node, known):
                target = _target_name(assign.target)
                if target not in names:
                    names.append(target)
    return names


def _named(loop: nodes.For) -> nodes.For:
    _target_name(loop.target)
    return loop


def _target_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unexpected
    return target.name


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Without filters, tests and slices around it."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            return node


def _is_name(node: nodes.Node | None, name: str) -> bool:
    bare = _bare(node)
    return isinstance(bare, nodes.Name) and bare.ctx == "load" and bare.name == name


def _is_member(node: nodes.Node | None, name: str, member: str) -> bool:
    """`name.member` or `name["member"]`; the name itself stands bare there."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getitem):
        matches = isinstance(bare.arg, nodes.Const) and bare.arg.value == member
    elif isinstance(bare, nodes.Getattr):
        matches = bare.attr == member
    else:
        return False
    owner = bare.node
    return matches and isinstance(owner, nodes.Name) and owner.ctx == "load" and owner.name == name
