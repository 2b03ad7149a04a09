"""Blocks of a trace, cut to the engines' size."""

from __future__ import annotations

import pytest

from pointsman.app.simulate.prompts import ANY_MODEL, Prompts
from pointsman.app.simulate.setup import RouteKey, Setup, WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

GROUPS = (WorkerGroup(profile("h100/llama-8b"), 1),)


def prompts(block_tokens: int | None = None, trace_tokens: int = 64, **fields: object) -> Prompts:
    return Prompts(Trace("t", [], trace_tokens), Setup(GROUPS, block_tokens=block_tokens, **fields))  # type: ignore[arg-type]


def asks(tokens: int, *ids: int, output: int = 1, answer: tuple[int, ...] = ()) -> TraceRequest:
    return TraceRequest(0, tokens, output, ids, answer)


def test_a_block_that_is_not_full_has_no_key() -> None:
    made = prompts()
    assert len(made.prompt(asks(128, 7, 8)).keys) == 2
    assert len(made.prompt(asks(127, 7, 9)).keys) == 1
    assert made.prompt(asks(64, 7)).keys == made.prompt(asks(127, 7, 9)).keys


def test_any_ids_become_small_keys() -> None:
    keys = prompts().prompt(asks(192, -5, 2**80, 3)).keys
    assert len(set(keys)) == 3
    assert all(0 <= key < 2**60 for key in keys)


def test_models_share_nothing() -> None:
    made = prompts()
    one, other, again = (made.prompt(TraceRequest(0, 128, 1, (7, 8), model=model)).keys for model in ("a", "b", "a"))
    assert one == again
    assert not set(one) & set(other)


def test_smaller_blocks_are_the_same_where_the_traces_are() -> None:
    made = prompts(16)
    one, other = made.prompt(asks(150, 1, 2, 3)).keys, made.prompt(asks(150, 1, 2, 4)).keys
    assert len(one) == 9  # 150 // 16; the third block of the trace is filled by 22 tokens
    assert one[:8] == other[:8]
    assert one[8] != other[8]
    assert len(set(one)) == 9


def test_larger_blocks_are_the_same_where_all_of_theirs_are() -> None:
    made = prompts(128)
    one, other = made.prompt(asks(300, 1, 2, 3, 4, 5)).keys, made.prompt(asks(300, 1, 2, 3, 6, 7)).keys
    assert len(one) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize("block_tokens", [None, 16, 128])
def test_the_next_turn_finds_prompt_and_answer(block_tokens: int | None) -> None:
    made = prompts(block_tokens)
    turn = made.prompt(asks(100, 1, 99, output=156, answer=(2, 3, 4)))
    following = made.prompt(asks(300, 1, 2, 3, 4, 5))
    known = turn.keys + turn.answer_keys
    assert known == following.keys[: len(known)]
    assert len(known) == 256 // made.block_tokens


def test_answers_after_prompts_that_are_not_known_whole_are_not_known_either() -> None:
    prompt = prompts().prompt(asks(200, 1, output=120, answer=(2, 3)))
    assert (len(prompt.keys), prompt.answer_keys) == (1, ())


def test_without_ids_there_are_no_keys() -> None:
    made = prompts(trace_tokens=0)
    assert made.block_tokens == 16
    assert made.prompt(asks(100)).keys == ()


def test_sizes_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"block_tokens 48 .* blocks of 64 tokens"):
        prompts(48)


def test_requests_as_the_front_end_makes_them() -> None:
    asked = TraceRequest(3.0, 130, 1, (1, 2, 3), session="s", tenant="t")
    made = prompts()
    request = made.request("r", asked, 4.0, made.prompt(asked))
    assert (request.model, request.arrival_ms, request.prompt_tokens) == (ANY_MODEL, 4.0, 130)
    assert (request.route_key, request.tenant) == ("s", "t")
    assert request.token_blocks[made.spec] is request.blocks
    assert (len(request.blocks.keys), request.blocks.length) == (2, 130)
    made = prompts(kv_events=False, route_key=RouteKey.TENANT)
    request = made.request("r", asked, 4.0, made.prompt(asked))
    assert (request.route_key, request.token_blocks) == ("t", {})
