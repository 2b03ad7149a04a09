from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.prompt_tree import PromptTree

_pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=5)


def _tokens(pieces: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Token by token what a prompt of these pieces is; a piece is known by its name and its length."""
    return [(name, length, position) for name, length in pieces for position in range(length)]


@given(st.lists(_pieces, min_size=2, max_size=5), st.integers(1, 6))
def test_ids_are_equal_exactly_where_prompts_are(prompts: list[list[tuple[int, int]]], block_tokens: int) -> None:
    tree = PromptTree(block_tokens)
    made = []
    for pieces in prompts:
        node = tree.root
        for piece, length in pieces:
            node = node.then(piece, length)
        made.append((_tokens(pieces), node.prompt_ids()))
    for (one, one_ids), (other, other_ids) in combinations(made, 2):
        assert len(one_ids) == -(-len(one) // block_tokens)
        for position in range(max(len(one_ids), len(other_ids))):
            end = (position + 1) * block_tokens
            same_text = one[:end] == other[:end] and len(one[:end]) > position * block_tokens
            ids = [ids[position] if position < len(ids) else None for ids in (one_ids, other_ids)]
            # Pieces that differ are different text also where a shorter one would be the start of a longer one.
            assert (ids[0] is not None and ids[0] == ids[1]) == same_text


def test_an_answer_continues_the_blocks_of_its_prompt() -> None:
    tree = PromptTree(4)
    prompt = tree.root.then("system", 8).then("question", 3)
    answer = prompt.then("answer", 6)
    request = prompt.request(5.0, 6, answer=answer, session="s")
    assert (request.prompt_tokens, request.output_tokens) == (11, 6)
    assert len(request.block_ids) == 3
    assert request.answer_block_ids == answer.block_ids[2:]
    follow_up = answer.then("question 2", 3)
    assert follow_up.prompt_ids()[:4] == request.block_ids[:2] + request.answer_block_ids
    assert prompt.request(5.0, 6).answer_block_ids == ()


def test_a_prompt_that_would_fill_the_memory_is_not_made() -> None:
    with pytest.raises(TraceError, match="a prompt of 300,000,000,000 tokens is not made"):
        PromptTree(16).root.then("system", 300_000_000_000)
