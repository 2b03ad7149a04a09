from __future__ import annotations

import json

from harness.prompts import chat_bodies, http_post


def _texts(**changes: int) -> list[str]:
    options = {"max_tokens": 5, "count": 6, "groups": 2, "prefix_words": 10, "tail_words": 4, "seed": 1} | changes
    bodies = [json.loads(body) for body in chat_bodies(model="m", **options)]
    assert all(body["stream"] and body["max_tokens"] == 5 for body in bodies)
    return [body["messages"][0]["content"] for body in bodies]


def test_groups_share_their_beginning_and_nothing_else() -> None:
    texts = _texts()
    beginnings = [" ".join(text.split()[:10]) for text in texts]
    assert beginnings[0::2] == [beginnings[0]] * 3
    assert beginnings[0] != beginnings[1]
    assert len(set(texts)) == 6
    assert all(len(text.split()) == 14 for text in texts)


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert _texts() == _texts()
    assert _texts() != _texts(seed=2)


def test_other_tails_leave_the_beginnings_as_they_are() -> None:
    texts, others = _texts(tail_seed=1), _texts(tail_seed=2)
    assert [text.split()[:10] for text in texts] == [text.split()[:10] for text in others]
    assert not set(texts) & set(others)


def test_a_history_ends_with_an_answer_and_a_new_message() -> None:
    options = {"max_tokens": 5, "count": 3, "groups": 2, "prefix_words": 10, "tail_words": 4, "seed": 1}
    bodies = [json.loads(body) for body in chat_bodies(model="m", history_messages=3, **options)]
    roles = [message["role"] for message in bodies[0]["messages"]]
    assert roles == ["assistant", "user", "assistant", "user"]
    histories = [body["messages"][:-1] for body in bodies]
    assert histories[0] == histories[2] != histories[1]
    assert sum(len(message["content"].split()) for message in bodies[0]["messages"]) == 14
    assert bodies[0]["messages"][-1] != bodies[2]["messages"][-1]


def test_a_request_is_as_long_as_it_says() -> None:
    head, _, body = http_post(9000, "/v1/chat/completions", b'{"a":1}').partition(b"\r\n\r\n")
    assert b"content-length: 7" in head
    assert body == b'{"a":1}'
