"""Streams cut anywhere, into whatever reads, and gone on with: what the client hears is the undisturbed answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.serving.migration.converted import ConvertedStream, Seam
from pointsman.edge.serving.migration.replayed import ReplayedStream
from pointsman.edge.serving.migration.tracked import TrackedStream
from pointsman.edge.serving.migration.transcript import Transcript
from support.told_streams import Heard, Piece, Story, hear

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
TOKENS = st.lists(st.integers(1, 50_000), min_size=1, max_size=2).map(tuple)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Reasoning, then content, then tool calls, some of it missing; or a plain completion."""
    chat = draw(st.booleans())
    texts = st.builds(Piece, TOKENS, st.just("content" if chat else "text"), WORDS)
    pieces: list[Piece] = []
    if chat:
        pieces += draw(st.lists(st.builds(Piece, TOKENS, st.just("reasoning"), WORDS), max_size=3))
        pieces += draw(st.lists(st.builds(Piece, TOKENS, st.none()), max_size=1))
    pieces += draw(st.lists(texts, min_size=1, max_size=6))
    if chat:
        for call in range(draw(st.integers(0, 2))):
            pieces.append(Piece(draw(TOKENS), "call", "", call, "look"))
            pieces += draw(st.lists(st.builds(Piece, TOKENS, st.just("call"), WORDS, st.just(call)), max_size=3))
    return Story(
        pieces,
        chat=chat,
        finish=draw(st.sampled_from(["stop", "length"])),
        logprobs=draw(st.booleans()),
        tells_ids=draw(st.booleans()),
    )


def reads(body: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    places = sorted({place % (len(body) + 1) for place in cuts})
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True) if a < b]


def first_part(story: Story, body: bytes, upto: int, cuts: list[int], *, strips: bool) -> tuple[bytes, Transcript]:
    """What a client got of a stream that was cut after so many bytes."""
    transcript = Transcript()
    stream = TrackedStream(transcript, lambda: None, hide_usage=not story.usage, strips=strips)
    out = b"".join(stream.feed(part) for part in reads(body[:upto], cuts))
    return out, transcript


CUTS = st.lists(st.integers(0, 100_000), max_size=8)


@given(
    story=stories(),
    place=st.floats(0, 1),
    cuts=CUTS,
    again=CUTS,
    merges=st.lists(st.integers(1, 4), max_size=8),
    shows_ids=st.booleans(),
)
def test_a_replay_that_is_cut_into_other_events(
    story: Story, place: float, cuts: list[int], again: list[int], merges: list[int], shows_ids: bool
) -> None:
    whole = b"".join(story.events())
    out, transcript = first_part(story, whole, int(place * len(whole)), cuts, strips=not shows_ids)
    other = replace(story, name={"id": "chatcmpl-2", "created": 2, "model": "other"}) if out else story
    stream = ReplayedStream(transcript, lambda: None, hide_usage=not story.usage, strips=not shows_ids)
    for part in reads(b"".join(other.events(merges, call_ids="b")), again):
        out += stream.feed(part)
    out += stream.flush()
    assert stream.fault is None
    expected, heard = hear(whole), hear(out)
    if out.count(b"[DONE]") == 2:  # it was cut behind the very end
        assert place == 1
        return
    expected_ids = expected.ids if shows_ids else []
    assert heard.ids == expected_ids
    assert (heard.names, heard.texts, heard.calls) == (expected.names, expected.texts, expected.calls)
    assert (heard.logprobs, heard.finishes, heard.dones) == (expected.logprobs, expected.finishes, 1)
    assert heard.roles == expected.roles
    assert not heard.errors
    assert heard.usages[-1:] == expected.usages
    assert transcript.said.ids.tolist() == (hear(whole).ids if story.tells_ids else [])


@given(story=stories(), place=st.floats(0, 1), merges=st.lists(st.integers(1, 3), max_size=5))
def test_a_replay_that_says_something_else_is_found_out(story: Story, place: float, merges: list[int]) -> None:
    whole = b"".join(story.events())
    _, transcript = first_part(story, whole, int(place * len(whole)), [], strips=True)
    said = transcript.said
    channel = "content" if story.chat else "text"
    if not said.text((channel, 0)) or said.finish_reason is not None:
        return
    pieces = [
        replace(p, text=p.text.replace(p.text[:1], "\N{SNOWMAN}") if p.channel == channel else p.text)
        for p in story.pieces
    ]
    stream = ReplayedStream(transcript, lambda: None, hide_usage=False, strips=True)
    more = b"".join(stream.feed(event) for event in replace(story, pieces=pieces).events(merges))
    if hear(b"".join(replace(story, pieces=pieces).events())).texts == hear(whole).texts:
        return
    assert stream.fault is not None
    assert not hear(more).texts


@st.composite
def plain_stories(draw: st.DrawFn) -> Story:
    """Text only, one token a piece, ids told."""
    chat = draw(st.booleans())
    pieces = [
        Piece((draw(st.integers(1, 50_000)),), "content" if chat else "text", draw(WORDS.filter(bool)))
        for _ in range(draw(st.integers(2, 8)))
    ]
    return Story(pieces, chat=chat, tells_ids=True, finish=draw(st.sampled_from(["stop", "length"])))


@given(
    story=plain_stories(), place=st.floats(0, 1), cuts=CUTS, again=CUTS, shows_usage=st.booleans(), strips=st.booleans()
)
def test_what_goes_on_from_token_ids(
    story: Story, place: float, cuts: list[int], again: list[int], shows_usage: bool, strips: bool
) -> None:
    whole = b"".join(replace(story, usage=shows_usage).events())
    out, transcript = first_part(story, whole, int(place * len(whole)), cuts, strips=strips)
    said = transcript.said
    if not said.ids or said.finish_reason is not None:
        return
    kept = len(said.ids)
    rest = Story(story.pieces[kept:], chat=False, tells_ids=True, finish=story.finish, prompt_ids=(1,))
    rest = replace(rest, pieces=[replace(piece, channel="text") for piece in rest.pieces])
    seam = Seam(
        chat=story.chat,
        prompt_tokens=3,
        kept_tokens=kept,
        held="",
        stops=(),
        include_stop=False,
        shows_usage=shows_usage,
        strips=strips,
    )
    stream = ConvertedStream(transcript, seam, lambda: None)
    for part in reads(b"".join(rest.events()), again):
        out += stream.feed(part)
    out += stream.flush()
    assert stream.fault is None
    expected, heard = hear(whole), hear(out)
    if strips:
        assert not heard.ids
        expected.ids = []
    assert heard == expected
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (3, len(story.pieces))
    assert transcript.said.ids.tolist() == hear(b"".join(story.events())).ids


def test_nothing_was_heard_twice_by_the_tests_own_ears() -> None:
    story = Story([Piece((1,), "content", "a"), Piece((2,), "content", "b")])
    heard = hear(b"".join(story.events()))
    assert heard == Heard(
        names={("chatcmpl-1", 1, "m", "chat.completion.chunk")},
        roles=1,
        texts={("content", 0): "ab"},
        finishes=["stop"],
        usages=[(3, 2, 5)],
        dones=1,
    )
