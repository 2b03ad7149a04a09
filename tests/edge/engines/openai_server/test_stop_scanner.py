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
