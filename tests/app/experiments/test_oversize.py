"""What is too long for a fleet is told beforehand: the notes against what the simulator does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pointsman.app.experiments.oversize import cut_note, oversize_note
from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

SMALL = replace(profile("h100/llama-8b"), name="small", kv_tokens=1_600)
LARGE = replace(SMALL, name="large", kv_tokens=3_200)


def fleet(prefill: object, decode: object, **more: int) -> Setup:
    groups = (WorkerGroup(prefill, 1, Role.PREFILL), WorkerGroup(decode, 1, Role.DECODE))  # type: ignore[arg-type]
    return Setup(groups=groups, **more)  # type: ignore[arg-type]


def trace_of(prompts: Sequence[int], output_tokens: int, block_tokens: int = 0) -> Trace:
    """Requests far apart, without prefixes in common."""
    requests = []
    for number, prompt_tokens in enumerate(prompts):
        blocks = tuple(1_000 * number + block for block in range(prompt_tokens // block_tokens)) if block_tokens else ()
        requests.append(TraceRequest(60_000.0 * number, prompt_tokens, output_tokens, blocks))
    return Trace("t", requests, block_tokens)


@pytest.mark.parametrize("output_tokens", [1, 2, 20])
@pytest.mark.parametrize(
    ("setup", "block_tokens"),
    [
        (Setup(groups=(WorkerGroup(SMALL, 1),)), 0),
        (Setup(groups=(WorkerGroup(SMALL, 1),)), 512),
        (Setup(groups=(WorkerGroup(LARGE, 1),), max_context_tokens=1_600), 0),
        (fleet(SMALL, LARGE), 0),
        (fleet(LARGE, SMALL), 0),
        (fleet(SMALL, SMALL), 0),
        (fleet(LARGE, SMALL), 512),
    ],
)
def test_notes_say_what_the_simulator_does(setup: Setup, block_tokens: int, output_tokens: int) -> None:
    edges = [limit + more for limit in (1_536, 1_600) for more in range(-3, 3)]
    trace = trace_of([100, *edges, 1_580], output_tokens, block_tokens)
    outcome = simulate(trace, setup, RoundRobin())
    refused = [number for number, status in enumerate(outcome.status) if status != Status.DONE]
    cut = int((outcome.done & ~outcome.whole).sum())
    note = oversize_note(trace, [setup])
    if refused:
        assert note is not None
        assert note.startswith(f"{len(refused)} of {len(trace)} prompts leave no room for an answer in ")
        assert f"the first is request {refused[0]} with " in note
    else:
        assert note is None
    told = cut_note(trace, [setup])
    assert (told or "0 of ").startswith(f"{cut} of ")


def test_the_smallest_fleet_of_a_sweep_counts() -> None:
    small, large = (Setup(groups=(WorkerGroup(each, 1),)) for each in (SMALL, LARGE))
    trace = trace_of([10, 1_605, 10], 1)
    assert oversize_note(trace, [large]) is None
    assert oversize_note(trace, [large, small]) == (
        "1 of 3 prompts leave no room for an answer in the KV cache of small (1,600 tokens), the first is "
        "request 1 with 1,605; they are refused and count as failed"
    )


def test_answers_that_end_early() -> None:
    setup = Setup(groups=(WorkerGroup(LARGE, 1),), max_context_tokens=100)
    assert cut_note(trace_of([90, 50], 20), [setup]) == (
        "1 of 2 answers end early, where prompt and answer fill the longest context (100 tokens); "
        "they do not count as good"
    )


@pytest.mark.parametrize("block_tokens", [0, 4_096])
def test_a_fleet_that_takes_no_prompt(block_tokens: int) -> None:
    setup = Setup(groups=(WorkerGroup(SMALL, 1),), block_tokens=4_096)
    with pytest.raises(ConfigError, match=r"no prompt of t leaves room .* the KV cache of small \(0 tokens\)"):
        oversize_note(trace_of([10, 20], 1, block_tokens), [setup])
