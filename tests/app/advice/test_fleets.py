"""GPUs become workers, together or apart."""

from __future__ import annotations

import pytest

from pointsman.app.advice.fleets import Fleets, fleets, of_size, parse_gpus
from pointsman.app.experiments.fleet import parse_profiles
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.timing.profiles import profile
from pointsman.edge.traces.profile_file import load_profile

MIXED = "prefill=h100/llama-70b-tp4,decode=a100/llama-70b-tp4"


def _fleets(profiles: str, gpus: str) -> Fleets:
    return fleets(parse_profiles(profiles, load_profile), parse_gpus(gpus))


def test_workers_of_one_kind_and_all_their_splits() -> None:
    found = _fleets("h100/llama-70b-tp4", "16")
    (together,) = found.together
    assert (together.name, together.workers, together.gpus) == ("4 workers", 4, 16)
    assert [fleet.name for fleet in found.split] == ["1:3", "2:2", "3:1"]
    assert [group.role for group in found.split[0].groups] == [Role.PREFILL, Role.DECODE]
    assert all(fleet.gpus == 16 for fleet in found.split)
    assert found.notes == ()


def test_gpus_that_make_no_worker_are_told() -> None:
    found = _fleets("h100/llama-70b-tp4", "7")
    assert found.together[0].name == "1 worker"
    assert found.split == ()
    assert found.notes == ("3 GPUs are left over: a worker of h100/llama-70b-tp4 takes 4.",)


def test_kv_memory_is_that_of_all_workers() -> None:
    llama = profile("h100/llama-8b")
    fleet = of_size(llama, 3)
    assert fleet.kv_tokens == 3 * llama.kv_tokens
    assert fleet.kv_bytes == 3 * llama.kv_tokens * llama.kv_bytes_per_token


def test_gpus_of_two_kinds_that_are_there() -> None:
    found = _fleets(MIXED, "8:4")
    assert [group.count for group in found.together[0].groups] == [2, 1]
    assert [group.role for group in found.together[0].groups] == [Role.BOTH, Role.BOTH]
    assert [fleet.name for fleet in found.split] == ["2:1"]
    assert found.one_kind is None


def test_gpus_of_two_kinds_that_may_be_bought() -> None:
    found = _fleets("prefill=h100/llama-70b-tp4,decode=h100/llama-70b-tp2", "8")
    assert [fleet.name for fleet in found.together] == [
        "2 workers of h100/llama-70b-tp4",
        "4 workers of h100/llama-70b-tp2",
    ]
    assert [fleet.name for fleet in found.split] == ["1:2"]
    assert all(fleet.gpus <= 8 for fleet in (*found.together, *found.split))


@pytest.mark.parametrize(
    ("profiles", "gpus", "message"),
    [
        ("h100/llama-70b-tp4", "3", "one worker of h100/llama-70b-tp4 takes 4 GPUs; give at least 4"),
        ("h100/llama-70b-tp4", "4:4", "counts of two kinds go with --profile prefill=NAME,decode=NAME"),
        (MIXED, "3", "takes 4 GPUs"),
        (MIXED, "4:2", "--gpus 2: one worker of a100/llama-70b-tp4 takes 4 GPUs"),
        ("h100/llama-8b", "0", "write how many there are, such as 8"),
        ("h100/llama-8b", "eight", "write how many there are, such as 8"),
        ("h100/llama-8b", "1:2:3", "write how many there are, such as 8"),
    ],
)
def test_what_cannot_be(profiles: str, gpus: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _fleets(profiles, gpus)


def test_more_workers_than_are_simulated_are_refused() -> None:
    assert _fleets("h100/llama-70b-tp4", "4096").together[0].workers == 1_024
    with pytest.raises(ConfigError, match=r"--gpus 100000: 25,000 workers are more than one computer simulates"):
        _fleets("h100/llama-70b-tp4", "100000")
