"""A mirror's user and password stay out of messages and logs."""

from __future__ import annotations

import io

import pytest

from pointsman.edge.prompts.hub import HubError, fetch_into, shown_url
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.engine_links import EngineLink
from pointsman.edge.wire.origin import Origin


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:canary@mirror.example/a/b?token=canary", "https://mirror.example/a/b"),
        ("https://canary@mirror.example:8443", "https://mirror.example:8443"),
        ("https://huggingface.co/a@b/c", "https://huggingface.co/a@b/c"),
        ("nothing", "nothing"),
    ],
)
def test_what_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("url", ["http://user:canary@127.0.0.1:9/x?t=canary", "http://user:canary@ /x", "canary://x"])
async def test_errors(url: str) -> None:
    with pytest.raises(HubError) as raised:
        await fetch_into(io.BytesIO(), url, max_bytes=1)
    assert ":canary@" not in str(raised.value)
    assert "t=canary" not in str(raised.value)


def test_structures_do_not_show_theirs(tmp_path) -> None:
    assert "canary" not in repr(TokenizerPlaces(tmp_path, hub_token="canary"))
    link = EngineLink(Origin.parse("http://a:1"), "canary", True, None)
    assert "canary" not in repr(link)
