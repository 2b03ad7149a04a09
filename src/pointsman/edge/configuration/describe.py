"""What a configuration type accepts, in words; messages and docs/configuration.md use the same ones."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec


def is_parsed(kind: Any) -> bool:
    """Whether a type reads itself: `parse(value)`, and `expected` says what that takes."""
    return isinstance(kind, type) and hasattr(kind, "parse") and hasattr(kind, "expected")


def without_annotation(kind: Any) -> tuple[Any, msgspec.Meta]:
    """The bare type and its constraints."""
    if get_origin(kind) is Annotated:
        metas = [m for m in kind.__metadata__ if isinstance(m, msgspec.Meta)]
        return kind.__origin__, metas[0] if metas else msgspec.Meta()
    return kind, msgspec.Meta()


def union_members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none is its only member."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The section that a type stands for, optional or not."""
    for member in union_members(without_annotation(kind)[0]):
        bare, _ = without_annotation(member)
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            return bare
    return None


def item_of(kind: Any) -> Any | None:
    """The type of a list's items, None if the type is no list."""
    for member in union_members(without_annotation(kind)[0]):
        if get_origin(member) is tuple:
            return get_args(member)[0]
    return None


def value_of(kind: Any) -> Any | None:
    """The type of a mapping's values, None if the type is no mapping."""
    for member in union_members(without_annotation(kind)[0]):
        if get_origin(member) is Mapping:
            return get_args(member)[1]
    return None


def expected(kind: Any) -> str:
    """For example `an integer from 1 to 65535, or none`."""
    bare, meta = without_annotation(kind)
    return ", or ".join(dict.fromkeys(_expected_one(member, meta) for member in union_members(bare)))


def _signs(pattern: str) -> str:
    """That a pattern of the form `^[A-Za-z0-9…]+$` allows besides."""
    return " ".join(pattern.removeprefix("^[A-Za-z0-9").removesuffix("]+$").replace("\\", ""))


def _expected_one(kind: Any, meta: msgspec.Meta) -> str:
    if kind is type(None):
        return "none"
    if is_parsed(kind):
        return str(kind.expected)
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"an integer{_range(meta)}"
    if kind is float:
        return f"a number{_range(meta)}"
    if kind is str:
        return "text" if meta.pattern is None else f"text of letters, digits and {_signs(meta.pattern)}"
    if get_origin(kind) is tuple:
        return f"a list, each item {expected(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        return f"keys and values, each value {expected(get_args(kind)[1])}"
    choices = choices_of(kind)
    if choices:
        return "one of " + ", ".join(choices)
    return "keys and values"


def _range(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    return f" of at least {meta.ge}" if meta.ge is not None else ""


def choices_of(kind: Any) -> tuple[str, ...]:
    """The words that a type takes; empty: it takes others than words, too."""
    if get_origin(kind) is Literal:
        return tuple(str(choice) for choice in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(choice.value) for choice in kind)
    return ()
