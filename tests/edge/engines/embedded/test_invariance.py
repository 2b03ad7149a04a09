"""The same bits, however tokens are cut into chunks, put together with others, and wherever their blocks lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.engines.embedded.batch import Part
from pointsman.edge.engines.embedded.kv_blocks import KvBlocks
from pointsman.edge.engines.embedded.linear import TILE_ROWS, rows_are_alike
from pointsman.edge.engines.embedded.seeded_weights import tiny_config
from support.embedded_models import BLOCK_SIZE, decoder, whole

VOCABULARY = 300
FAMILIES = ("llama", "qwen2", "qwen3")


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """Prompts, and steps: which prompts go on in each and by how many tokens."""
    prompts = draw(st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=150), min_size=1, max_size=4))
    left = {number: len(prompt) for number, prompt in enumerate(prompts)}
    steps = []
    while left:
        chosen = draw(st.lists(st.sampled_from(sorted(left)), min_size=1, max_size=len(left), unique=True))
        step = []
        for number in chosen:
            count = draw(st.integers(1, left[number]))
            step.append((number, count))
            left[number] -= count
            if not left[number]:
                del left[number]
        steps.append(step)
    return prompts, steps


@given(schedule=schedules(), family=st.sampled_from(FAMILIES), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_chunks_batches_and_places_change_no_bit(
    schedule: tuple[list[list[int]], list[list[tuple[int, int]]]], family: str, seed: int
) -> None:
    prompts, steps = schedule
    model = decoder(tiny_config(VOCABULARY, family))
    kv = KvBlocks(model.config, 60, BLOCK_SIZE)
    # What lay there before must not matter: blocks are handed out again.
    for block in range(1, 61):
        kv.block(block)[:] = np.random.default_rng(block).standard_normal(kv.block(block).shape)
    free = np.random.default_rng(seed).permutation(np.arange(1, 61)).tolist()
    tables = [[free.pop() for _ in range(-(-len(prompt) // BLOCK_SIZE))] for prompt in prompts]
    done = [0] * len(prompts)
    found: dict[int, bytes] = {}
    for step in steps:
        parts, ends = [], []
        for number, count in step:
            prompt, first = prompts[number], done[number]
            done[number] += count
            ends.append(number)
            parts.append(Part(prompt[first : first + count], first, tables[number], done[number] == len(prompt)))
        logits = iter(model.forward(parts, kv))
        for number in ends:
            if done[number] == len(prompts[number]):
                found[number] = next(logits).tobytes()
    for number, prompt in enumerate(prompts):
        alone, expected, table = whole(model, prompt)
        assert found[number] == alone.tobytes()
        for place, (ours, theirs) in enumerate(zip(tables[number], table, strict=True)):
            filled = min(BLOCK_SIZE, len(prompt) - place * BLOCK_SIZE)
            assert kv.block(ours)[..., :filled, :].tobytes() == expected.block(theirs)[..., :filled, :].tobytes()


def test_a_prefix_that_was_computed_for_another_gives_the_same_bits() -> None:
    model = decoder(tiny_config(VOCABULARY))
    shared = list(range(96))
    prompt = [*shared, *range(200, 240)]
    expected, _, _ = whole(model, prompt)
    _, kv, table = whole(model, [*shared, 7, 8, 9])
    cached = table[: len(shared) // BLOCK_SIZE]
    blocks = [*cached, 30, 31, 32]
    logits = model.forward([Part(prompt[len(shared) :], len(shared), blocks, True)], kv)
    assert logits[0].tobytes() == expected.tobytes()


def test_blocks_of_another_size_change_no_bit() -> None:
    model = decoder(tiny_config(VOCABULARY))
    prompt = [3 * n % VOCABULARY for n in range(150)]
    expected, _, _ = whole(model, prompt)
    for size in (1, 8, 32, 64):
        kv = KvBlocks(model.config, 151, size)
        logits = model.forward([Part(prompt, 0, list(range(1, 1 + -(-150 // size))), True)], kv)
        assert logits[0].tobytes() == expected.tobytes()


def test_the_check_of_rows_finds_a_product_that_depends_on_the_place(monkeypatch) -> None:
    assert rows_are_alike(64, 96, TILE_ROWS)
    from pointsman.edge.engines.embedded import linear

    right = linear.times

    def odd(rows, matrix, tile):
        product = right(rows, matrix, tile)
        product[3] = np.nextafter(product[3], np.float32(np.inf))
        return product

    monkeypatch.setattr(linear, "times", odd)
    assert not rows_are_alike(64, 96, TILE_ROWS)
