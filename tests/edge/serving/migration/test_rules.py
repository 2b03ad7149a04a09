"""The rules of going on elsewhere, one by one: which mechanism, which tokens, what is asked, what is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.migration import Mechanism
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.edge.serving.engine_links import EngineLink, EngineLinks
from pointsman.edge.serving.migration.abilities import abilities
from pointsman.edge.serving.migration.continued import continued_body, limit_of, stops_of, unknown_field
from pointsman.edge.serving.migration.said import Said
from pointsman.edge.serving.migration.seam import NoSeamError, find_seam, is_clean
from pointsman.edge.serving.migration.sse_events import failure_of
from pointsman.edge.serving.migration.stops import SeamStops
from pointsman.edge.serving.migration.strip import without_answer_ids, without_ids
from pointsman.edge.serving.migration.transcript import RAW_BYTES, Transcript
from support.told_streams import Piece, Story


class TestAbilities:
    @pytest.mark.parametrize(
        "body",
        [{}, {"temperature": 0.7, "top_p": 0.9}, {"n": 1}, {"tools": [{}], "tool_choice": "none"}, {"seed": None}],
    )
    def test_token_ids_go_on_with_sampled_answers(self, body: dict[str, Any]) -> None:
        assert abilities(body).token_ids is None
        assert abilities(body).replay is not None

    @pytest.mark.parametrize(
        ("body", "word"),
        [
            ({"presence_penalty": 0.5}, "presence_penalty"),
            ({"frequency_penalty": -1}, "frequency_penalty"),
            ({"bad_words": ["x"]}, "bad_words"),
            ({"tools": [{}]}, "tools"),
            ({"messages": [], "logprobs": True}, "logprobs"),
            ({"echo": True}, "echoes"),
            ({"seed": 1}, "seed"),
            ({"include_reasoning": False}, "reasoning"),
            ({"min_tokens": 3, "stop": "x"}, "min_tokens"),
            ({"min_tokens": "3"}, "min_tokens"),
            ({"response_format": {"type": "json_schema"}}, "guided"),
            ({"structured_outputs": {"regex": "a"}}, "guided"),
            ({"tool_choice": "required", "tools": [{}]}, "guided"),
            ({"prompt_embeds": "x"}, "prompt_embeds"),
        ],
    )
    def test_what_only_a_replay_can(self, body: dict[str, Any], word: str) -> None:
        sampled_or_not = body if "seed" in body else body | {"temperature": 0.0}
        assert word in (abilities(sampled_or_not).token_ids or "")
        assert abilities(body | {"temperature": 0.0}).replay is None

    @pytest.mark.parametrize("body", [{"n": 2}, {"best_of": 2}, {"use_beam_search": True}, {"prompt": ["a", "b"]}])
    def test_what_nothing_can(self, body: dict[str, Any]) -> None:
        able = abilities(body | {"temperature": 0})
        assert able.token_ids == able.replay is not None

    def test_greedy_or_seeded(self) -> None:
        assert abilities({"seed": 5, "temperature": 1}).replay is None
        assert abilities({"seed": 5, "temperature": 1}).token_ids is not None
        assert abilities({"seed": 5, "temperature": 0}).token_ids is None
        assert abilities({"top_k": 1, "temperature": 1}).replay is None
        assert abilities({"temperature": False}).replay is not None


class TestContinuedBody:
    def test_a_chat_becomes_a_completion_of_tokens(self) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "max_completion_tokens": 50,
            "max_tokens": 9,
            "min_tokens": 30,
            "temperature": 0.3,
            "stop": ["a"],
            "tools": [],
            "stream_options": {"continuous_usage_stats": True},
            "cache_salt": "s",
        }
        limit = limit_of(body, 3, None)
        assert limit == 50
        assert continued_body(body, [1, 2, 3], [4, 5], limit) == {
            "model": "m",
            "prompt": [1, 2, 3, 4, 5],
            "max_tokens": 48,
            "min_tokens": 28,
            "temperature": 0.3,
            "stream": True,
            "stream_options": {"continuous_usage_stats": True, "include_usage": True},
            "return_token_ids": True,
            "cache_salt": "s",
        }
        assert unknown_field(body) is None

    def test_limits_that_nobody_gave(self) -> None:
        assert limit_of({"prompt": "x"}, 10, 100) == 16
        assert limit_of({"messages": []}, 10, 100) == 90
        assert limit_of({"messages": [], "max_tokens": None}, 10, None) is None

    def test_a_field_that_nobody_knows(self) -> None:
        assert unknown_field({"model": "m", "new_trick": 3}) == "new_trick"
        assert unknown_field({"new_trick": None}) is None

    def test_stop_strings(self) -> None:
        assert stops_of({"stop": "a"}) == ("a",)
        assert stops_of({"stop": ["a", "", 3, "b"]}) == ("a", "b")
        assert stops_of({}) == ()


ALPHABET = "aé\N{SNOWMAN}\N{GRINNING FACE}"
BYTES = list(ALPHABET.encode())


async def decode(ids: Sequence[int]) -> str:
    """A token is a byte; what is no whole character is a replacement."""
    return bytes(ids).decode("utf-8", "replace")


def said_of(ids: Sequence[int], text: str) -> Said:
    said = Said(prompt_ids=[104, 105], last_tokens=1, last_plain=True)
    said.ids.extend(ids)
    if text:
        said.pieces[("text", 0)] = [text]
    return said


class TestSeam:
    @given(text=st.text(ALPHABET, max_size=8), more=st.integers(0, 3), hidden=st.integers(0, 4))
    async def test_the_kept_tokens_text_begins_with_the_clients(self, text: str, more: int, hidden: int) -> None:
        whole = (text + "\N{GRINNING FACE}").encode()
        ids = list(whole[: len(text.encode()) + more])
        shown = text[: max(0, len(text) - hidden)]
        kept, held = await find_seam(said_of(ids, shown), chat=False, decode=decode)
        assert bytes(ids[:kept]).decode() == shown + held
        assert not held, "bytes end with characters, so nothing has to be held"

    async def test_a_token_of_which_the_client_has_a_part_is_kept(self) -> None:
        words = {1: "one", 2: " two", 3: " three"}

        async def by_word(ids: Sequence[int]) -> str:
            return "".join(words.get(token, "p") for token in ids)

        assert await find_seam(said_of([1, 2, 3], "one t"), chat=False, decode=by_word) == (2, "wo")
        assert await find_seam(said_of([1, 2, 3], "one two"), chat=False, decode=by_word) == (2, "")
        assert await find_seam(said_of([1, 2, 3], ""), chat=False, decode=by_word) == (0, "")

    async def test_text_that_is_not_the_tokens_is_refused(self) -> None:
        with pytest.raises(NoSeamError):
            await find_seam(said_of([97, 97], "b"), chat=False, decode=decode)

    def test_clean(self) -> None:
        said = said_of([97], "a")
        assert is_clean(said, ())
        assert not is_clean(said, ("x",))
        said.last_tokens = 2
        assert not is_clean(said, ())


class TestStops:
    @given(
        text=st.text("ab", max_size=12),
        stop=st.text("ab", min_size=1, max_size=4),
        seam=st.integers(0, 12),
        sizes=st.lists(st.integers(1, 4), max_size=12),
        include=st.booleans(),
    )
    def test_as_if_there_were_no_seam(self, text: str, stop: str, seam: int, sizes: list[int], include: bool) -> None:
        before, after = text[:seam], text[seam:]
        if stop in before:
            return
        shown = before[: max(0, len(before) - (len(stop) - 1))]
        stops = SeamStops((stop,), shown, before[len(shown) :], include=include)
        out = shown
        while after and stops.found is None:
            size = sizes.pop(0) if sizes else 1
            out += stops.feed(after[:size])
            after = after[size:]
        if stops.found is None:
            out += stops.flush()
        place = text.find(stop)
        assert (stops.found is None) == (place < 0)
        assert out == (text if place < 0 else text[: place + (len(stop) if include else 0)])


class TestStrip:
    def test_ids_become_null_and_events_of_ids_only_go(self) -> None:
        told = Story([Piece((1,), "content", 'say "token_ids":[7]'), Piece((2,), None), Piece((3,))], tells_ids=True)
        silent = Story([told.pieces[0], told.pieces[2]], usage=False)
        expected = b"".join(silent.events()[:-1])
        role = b'"delta":{"role":"assistant","content":""}}]'
        expected = expected.replace(role, role + b',"prompt_token_ids":null')
        assert without_ids(b"".join(told.events()[:-2])) == expected

    @given(
        pieces=st.lists(
            st.builds(Piece, st.tuples(st.integers(1, 9)), st.just("text"), st.text(max_size=4)), min_size=1
        )
    )
    def test_the_fast_way_is_the_slow_one(self, pieces: list[Piece]) -> None:
        events = Story(pieces, chat=False, tells_ids=True, usage=False).events()[1:]
        for block in [*events, b"".join(events)]:
            assert without_answer_ids(block) == without_ids(block)
            assert b'"token_ids":[' not in without_answer_ids(block)


class TestTranscript:
    def test_long_streams_are_read_as_they_go(self) -> None:
        transcript = Transcript()
        event = (
            Story([Piece((5,), "content", "word")], tells_ids=True, usage=False).events()[1].replace(b'"stop"', b"null")
        )
        for _ in range(3 * RAW_BYTES // len(event)):
            transcript.add(event)
        assert transcript._raw_bytes <= RAW_BYTES
        said = transcript.said
        assert said.text(("content", 0)) == "word" * len(said.ids)
        assert said.ids_known

    def test_comments_and_broken_events_are_no_obstacle(self) -> None:
        transcript = Transcript()
        transcript.add(b": ping\n\ndata: {no json}\n\n" + Story([Piece((5,), "content", "word")]).events()[1])
        assert transcript.said.text(("content", 0)) == "word"
        assert transcript.said.ids_known is False


@pytest.mark.parametrize(
    ("event", "fails"),
    [
        (b'data: {"error":{"message":"x","code":500}}\n\n', True),
        (b'data: {"error":{"message":"x"}}\n\n', True),
        (b'data: {"error":"x"}\n\n', True),
        (b'data: {"object":"error","message":"x","code":503}\n\n', True),
        (b"event: error\ndata: {}\n\n", True),
        (b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n', True),
        (b'data: {"error":{"message":"x","code":400}}\n\n', False),
        (b'data: {"choices":[{"index":0,"text":"\\"abort\\" error","finish_reason":null}]}\n\n', False),
        (b'data: {"choices":[],"error":null}\n\n', False),
        (b"data: [DONE]\n\n", False),
    ],
)
def test_which_events_say_that_the_engine_failed(event: bytes, fails: bool) -> None:
    assert (failure_of(event) is not None) == fails


def link(**fields: Any) -> EngineLink:
    links = EngineLinks()
    spec = WorkerSpec(worker_id("a"), "http://a:1", "vllm", ("m",), **fields)
    links.joined(spec, None)
    return links.of(spec.id)


def test_who_can_go_on_with_what_another_began() -> None:
    ids = {"migration": Mechanism.TOKEN_IDS}
    assert link(**ids).continues(link(**ids))
    assert not link(**ids).continues(link())
    assert link(tokenizer="/mnt/x/llama").continues(link(tokenizer="/data/llama/"))
    assert not link(tokenizer="/mnt/x/llama").continues(link(tokenizer="/mnt/x/llama2"))
    assert link(tokenizer=None).continues(link(tokenizer="/mnt/x/llama2"))
