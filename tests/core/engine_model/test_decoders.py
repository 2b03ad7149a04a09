from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.engine_model.decoders import NEVER, Decoders
from pointsman.core.engine_model.length_sequence import LengthSequence
from pointsman.core.engine_model.request import LengthRequest


def joined(decoders: Decoders, prompt: int, output: int = 50) -> LengthSequence:
    sequence = LengthSequence(LengthRequest("a", prompt, output), 1000, hashed=True)
    sequence.still_length = prompt + 1
    decoders.join(sequence, hashed=True)
    return sequence


@given(
    size=st.integers(1, 20),
    prompts=st.lists(st.integers(1, 99), max_size=8),
    ticks=st.integers(0, 50),
    steps=st.integers(0, 70),
    free=st.integers(0, 60),
)
def test_demand_is_that_of_each_sequence(size: int, prompts: list[int], ticks: int, steps: int, free: int) -> None:
    decoders = Decoders(size)
    decoders.ticks = decoders.opened = ticks
    for prompt in prompts:
        joined(decoders, prompt)

    def blocks(after: int) -> int:
        # The step number n, counted from 0, computes the token prompt + n + 1.
        return sum(-(-(prompt + after) // size) - -(-prompt // size) for prompt in prompts)

    assert decoders.demand(ticks, ticks + steps) == blocks(steps)
    within = decoders.steps_within(free, steps)
    assert blocks(within) <= free
    assert within == steps or blocks(within + 1) > free


def test_lengths_and_sums_grow_with_the_steps() -> None:
    decoders = Decoders(4)
    short, long = joined(decoders, 7, output=3), joined(decoders, 10, output=9)
    assert (decoders.count, decoders.context_tokens, decoders.next_end()) == (2, 19, 1)
    decoders.ticks = decoders.opened = 2
    assert (short.length, short.computed, short.blocks) == (10, 9, 3)
    assert decoders.context_tokens == 23
    assert decoders.ended() == [short]
    assert (decoders.count, decoders.context_tokens, decoders.next_end()) == (1, 13, 7)
    decoders.leave(long)
    assert (decoders.count, decoders.context_tokens, decoders.next_end()) == (0, 0, NEVER)
    assert (long.length, long.computed, long.blocks) == (13, 12, 3)


def test_who_leaves_and_comes_back_is_counted_once() -> None:
    decoders = Decoders(4)
    sequence = joined(decoders, 7, output=20)
    decoders.leave(sequence)
    decoders.ticks = decoders.opened = 5
    decoders.join(sequence, hashed=True)
    assert decoders.next_end() == 5 + 18
    decoders.ticks = decoders.opened = 19
    # The end that was foreseen before is void.
    assert decoders.ended() == []
