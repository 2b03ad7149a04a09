from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.engines.openai_server.stop_scanner import StopScanner

pieces = st.lists(st.text(alphabet="ab", max_size=3), max_size=20)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(pieces, stops, st.booleans())
def test_the_text_ends_where_the_first_stop_string_begins(pieces: list[str], stops: list[str], include: bool) -> None:
    scanner = StopScanner(tuple(stops), include)
    out, text = "", ""
    for piece in pieces:
        text += piece
        out += scanner.feed(piece)
        if scanner.found is not None:
            break
    else:
        out += scanner.flush()
    if scanner.found is None:
        assert out == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(out if include else out + scanner.found)
        assert not any(stop in text[: -len(piece)] for stop in stops)
        assert not any(stop in out[:-1] for stop in stops) or include


@given(pieces, stops)
def test_only_what_may_begin_a_stop_string_is_held_back(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(tuple(stops), False)
    fed = out = ""
    for piece in pieces:
        fed += piece
        out += scanner.feed(piece)
        if scanner.found is not None:
            return
        assert len(fed) - len(out) <= max(map(len, stops)) - 1


@given(pieces, stops, st.integers(0, 20))
def test_a_stop_string_may_begin_but_not_end_in_what_is_skipped(pieces: list[str], stops: list[str], skip: int) -> None:
    scanner = StopScanner(tuple(stops), False)
    skipped, text = len("".join(pieces[:skip])), ""
    out = ""
    for number, piece in enumerate(pieces):
        text += piece
        out += scanner.skip(piece) if number < skip else scanner.feed(piece)
        ends = [
            at for stop in stops for at in range(len(text)) if text.startswith(stop, at) and at + len(stop) > skipped
        ]
        assert (scanner.found is not None) == bool(ends)
        if ends:
            assert out == text[: min(ends)]
            return
    assert out + scanner.flush() == text
