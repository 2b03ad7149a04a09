"""Links to engines that come and go."""

from __future__ import annotations

import pytest

from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.serving.engine_links import MOST_GONE, EngineLinks


def spec(name: str) -> WorkerSpec:
    return WorkerSpec(WorkerId(name), f"http://{name.partition('/')[0]}:1", "vllm", ("m",))


def test_what_left_lately_is_still_known_and_all_together_is_bounded() -> None:
    links = EngineLinks()
    links.joined(spec("stays/0"), "key")
    for number in range(3 * MOST_GONE):
        links.joined(spec(f"e{number}/0"), None)
        links.left(WorkerId(f"e{number}/0"))
    assert links.of(WorkerId("stays/0")).api_key == "key"
    assert links.of(WorkerId(f"e{3 * MOST_GONE - 1}/0")).origin.host == f"e{3 * MOST_GONE - 1}"
    with pytest.raises(KeyError):
        links.of(WorkerId("e0/0"))


def test_one_that_came_back_is_not_forgotten() -> None:
    links = EngineLinks()
    links.joined(spec("a/0"), None)
    links.left(WorkerId("a/0"))
    links.joined(spec("a/0"), "new")
    for number in range(2 * MOST_GONE):
        links.joined(spec(f"e{number}/0"), None)
        links.left(WorkerId(f"e{number}/0"))
    assert links.of(WorkerId("a/0")).api_key == "new"
