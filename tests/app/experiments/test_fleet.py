"""Fleets as they are written on the command line."""

from __future__ import annotations

import pytest

from pointsman.app.experiments.fleet import Size, groups, parse_profiles, parse_size
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.timing.profiles import profile


@pytest.mark.parametrize(("text", "size"), [("16", Size(both=16)), (" 4:12", Size(prefill=4, decode=12))])
def test_sizes(text: str, size: Size) -> None:
    assert parse_size(text) == size
    assert parse_size(str(size)) == size
    assert size.total == 16


@pytest.mark.parametrize("text", ["0", "-1", "", "4:0", "1:2:3", "many", "1.5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--workers"):
        parse_size(text)


def test_one_profile_for_all() -> None:
    found = parse_profiles("h100/llama-8b", profile)
    assert found.both is found.prefill is found.decode is profile("h100/llama-8b")


@pytest.mark.parametrize(
    "text",
    [
        "prefill=h100/llama-8b,decode=h200/llama-8b",
        "decode=h200/llama-8b,prefill=h100/llama-8b",
        " prefill = h100/llama-8b , decode=h200/llama-8b ",
    ],
)
def test_a_profile_for_each_role(text: str) -> None:
    found = parse_profiles(text, profile)
    assert found.both is None
    assert (found.prefill.name, found.decode.name) == ("h100/llama-8b", "h200/llama-8b")


def test_a_profile_with_commas_and_equals() -> None:
    seen: list[str] = []

    def load(text: str) -> object:
        seen.append(text)
        return profile("tiny")

    parse_profiles("estimate:gpu=h100,params=8b", load)  # type: ignore[arg-type]
    parse_profiles("prefill=estimate:gpu=h100,params=8b,decode=tiny", load)  # type: ignore[arg-type]
    assert seen == ["estimate:gpu=h100,params=8b", "estimate:gpu=h100,params=8b", "tiny"]


@pytest.mark.parametrize("text", ["prefill=tiny", "prefill=tiny,prefill=tiny"])
def test_a_role_without_profile(text: str) -> None:
    with pytest.raises(ConfigError, match="name one for each role"):
        parse_profiles(text, profile)


def test_groups() -> None:
    same = parse_profiles("tiny", profile)
    (both,) = groups(same, Size(both=3))
    assert (both.count, both.role) == (3, Role.BOTH)
    assert [(group.count, group.role) for group in groups(same, Size(prefill=1, decode=2))] == [
        (1, Role.PREFILL),
        (2, Role.DECODE),
    ]


def test_a_number_alone_does_not_say_who_does_what() -> None:
    with pytest.raises(ConfigError, match="say how many of each"):
        groups(parse_profiles("prefill=tiny,decode=tiny", profile), Size(both=3))


def test_more_workers_than_are_simulated_are_refused() -> None:
    found = parse_profiles("h100/llama-8b", profile)
    assert groups(found, Size(both=4_096))[0].count == 4_096
    with pytest.raises(ConfigError, match="--workers 4096:1: 4,097 workers are more than"):
        groups(found, Size(prefill=4_096, decode=1))
