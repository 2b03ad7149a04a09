"""Types in words."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta

from pointsman.core.model.worker import Role
from pointsman.edge.configuration.control_plane import Limits, Tls
from pointsman.edge.configuration.describe import expected, item_of, struct_of
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.execution_group import Node


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true or false"),
        (int, "an integer"),
        (Annotated[int, Meta(ge=1)], "an integer of at least 1"),
        (Annotated[int, Meta(ge=1, le=9)], "an integer from 1 to 9"),
        (Annotated[int | None, Meta(ge=1)], "an integer of at least 1, or none"),
        (Annotated[float, Meta(ge=0)], "a number of at least 0"),
        (str, "text"),
        (Literal["a", "b"], "one of a, b"),
        (Role, "one of prefill, decode, both"),
        (tuple[str, ...], "a list, each item text"),
        (Duration | None, f"{Duration.expected}, or none"),
        (Limits, "keys and values"),
    ],
)
def test_expected(kind: object, words: str) -> None:
    assert expected(kind) == words


def test_sections_and_items_are_found_through_annotations() -> None:
    assert struct_of(Annotated[Tls | None, Meta(description="x")]) is Tls
    assert struct_of(int) is None
    assert item_of(Annotated[tuple[Node, ...], Meta(description="x")]) is Node
    assert item_of(Tls) is None
