from __future__ import annotations

import json

import pytest

from pointsman.edge.wire.errors import error_type
from pointsman.edge.wire.openai import (
    BadRequest,
    error_body,
    parse_chat,
    parse_completion,
    parse_embedding,
    parse_responses,
    prefix_salt,
    prompt_bytes,
)
from support.costs import cpu_s

MESSAGES = '"messages": [{"role": "user", "content": "hi"}]'


def chat(more: str = "", messages: str = MESSAGES) -> bytes:
    return ('{"model": "m", ' + messages + (", " + more if more else "") + "}").encode()


BAD_CHATS = [
    # body, param, part of the message
    (b"", None, "empty"),
    (b" \n", None, "empty"),
    (b"{", None, "not valid JSON"),
    (b"null", None, "expected object, got null"),
    (b"[]", None, "expected object, got array"),
    (b'{"model":"m",\n "x": tru}', None, "line 2 column 8"),
    (chat() + b" x", None, "trailing"),
    (chat('"x": NaN'), None, "not valid JSON"),
    (chat('"x": "\xff"').decode().encode("latin-1"), None, "UTF-8"),
    (chat('"x": ' + "[" * 100_000 + "]" * 100_000), None, "nested too deeply"),
    (chat(messages='"messages": [{"role": "user", "content": ' + "[" * 100_000 + "]" * 100_000 + "}]"), None, "nested"),
    (b"{}", "model", "missing"),
    (b'{"model": 5}', "model", "expected string, got integer"),
    (b'{"model": null}', "model", "expected string, got null"),
    (b'{"model": "m"}', "messages", "missing"),
    (chat(messages='"messages": null'), "messages", "expected array, got null"),
    (chat(messages='"messages": {}'), "messages", "expected array, got object"),
    (chat(messages='"messages": [ ]'), "messages", "at least one"),
    (chat(messages='"messages": ["hi"]'), "messages[0]", "expected object, got string"),
    (chat(messages='"messages": [{"role": "user"}, {}]'), "messages[1].role", "missing"),
    (chat(messages='"messages": [{"role": "user", "content": 5}]'), "messages[0].content", "got integer"),
    (chat(messages='"messages": [{"role": "user", "content": "\\ud800"}]'), None, "not valid JSON"),
    (chat('"n": 1.5'), "n", "expected integer or null, got number"),
    (chat('"n": true'), "n", "got boolean"),
    (chat('"max_tokens": "5"'), "max_tokens", "got string"),
    (chat('"max_completion_tokens": []'), "max_completion_tokens", "got array"),
    (chat('"stream": "yes"'), "stream", "expected boolean or null, got string"),
    (chat('"stream_options": 5'), "stream_options", "object or null"),
    (chat('"stream_options": "null"'), "stream_options", "object or null"),
    (chat('"user": 5'), "user", "got integer"),
    (chat('"cache_salt": {}'), "cache_salt", "got object"),
]


@pytest.mark.parametrize(("body", "param", "part"), BAD_CHATS, ids=range(len(BAD_CHATS)))
def test_bad_chats_name_the_field(body, param, part):
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)
    error = json.loads(caught.value.body())["error"]
    assert caught.value.status == 400
    assert error["param"] == param
    assert part in error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["message"].startswith(("the value of " + param, param + ":"))


SURROGATES = [
    # content, the half that is reported, its offset in the content
    (r"\ud83d", r"\ud83d", 0),
    (r"\ud83d rest of a long text", r"\ud83d", 0),
    (r"text \ude00 rest of a long text", r"\ude00", 5),
    (r"\ud83d\u0041 rest of a long text", r"\ud83d", 0),
    (r"\ud83d\ude00\ude00 rest of a long text", r"\ude00", 12),
    (r"\ud83d\ude00\ud83d\n rest of a long text", r"\ud83d", 12),
    (r"\ud83d\ud83d\ude00 rest of a long text", r"\ud83d", 0),
    (r"\\\uDBFF", r"\uDBFF", 2),
]


@pytest.mark.parametrize("layout", ['{"model":"m",\n %s}', '{"model":"m",\n %s, "more": [1, 2, 3, 4, 5, 6, 7, 8, 9]}'])
@pytest.mark.parametrize(("content", "half", "offset"), SURROGATES, ids=range(len(SURROGATES)))
@pytest.mark.parametrize(
    ("parse", "field"),
    [
        (parse_chat, '"messages": [{"role": "user", "content": "%s"}]'),
        (parse_completion, '"prompt": "%s"'),
        (parse_completion, '"prompt": ["a", "%s"]'),
        (parse_chat, '"messages": [{"role": "user"}], "user": "%s"'),
        (parse_chat, '"unknown": "%s", "messages": [{"role": "user"}]'),
        (parse_embedding, '"input": "%s"'),
    ],
)
def test_half_a_surrogate_pair_is_named_with_its_place(parse, field, content, half, offset, layout):
    body = (layout % (field % content)).encode()
    column = body.index(content.encode()) + offset - body.index(b"\n")
    with pytest.raises(BadRequest) as caught:
        parse(body)
    assert f"{half} is half of a UTF-16 surrogate pair without the other half" in caught.value.message
    assert caught.value.message.endswith(f"line 2 column {column}")


@pytest.mark.parametrize("end", ["", "\\", "\\u", "\\ud", "\\ude0"])
def test_a_body_that_ends_within_a_pair_is_truncated(end):
    with pytest.raises(BadRequest, match="truncated"):
        parse_chat(b'{"model": "m", "messages": "\\ud83d' + end.encode())


def test_whole_pairs_and_escaped_backslashes_are_fine():
    assert parse_chat(chat(r'"x": "\ud83d\ude00", "y": "\\ud83d"')).model == "m"


def test_utf8_is_checked_across_pieces():
    text = "é€😀" * 200_000
    body = chat(messages=MESSAGES.replace("hi", text))
    assert len(prompt_bytes(parse_chat(body))) > 1_800_000
    at = len(body) - 100
    while body[at] & 0xC0 != 0x80:
        at += 1
    with pytest.raises(BadRequest, match=r"not valid UTF-8: .* at byte \d+") as caught:
        parse_chat(body[:at] + b"a" + body[at + 1 :])
    assert abs(int(caught.value.message.rsplit(" ", 1)[1]) - at) < 4


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_chat, '"messages": [' + '{"role":"u"},' * 160_000 + '{"role":"u"}]'),
        (parse_chat, '"messages": [{"role":"u","content":[' + "1," * 1_000_000 + "1]}]"),
        (parse_completion, '"prompt": [' + "[1]," * 500_000 + "[2]]"),
        (parse_completion, '"prompt": [' + "1," * 1_000_000 + "2]"),
    ],
    ids=["messages", "parts", "token id lists", "token ids"],
)
def test_large_bodies_of_small_parts_do_not_stop_the_loop(parse, text):
    body = ('{"model": "m", ' + text + "}").encode()
    # With an object for each part it would cost what this does, at least.
    assert cpu_s(lambda: parse(body)) < cpu_s(lambda: json.loads(body), 1) / 2
    request = parse(body)
    if parse is parse_completion:
        assert request.prompt_count == (500_001 if "[1]" in text[:30] else 1)


@pytest.mark.parametrize("part", [b"[1.5],", b'["x"],', b"1.5,", b"1, null,"])
def test_large_prompt_of_wrong_parts(part):
    with pytest.raises(BadRequest, match="prompt: expected"):
        parse_completion(b'{"model": "m", "prompt": [' + part * 300_000 + part[:-1] + b"]}")


def test_chat():
    request = parse_chat(
        chat('"stream": true, "n": 3, "max_tokens": 7, "user": "u", "unknown": {"a": [1]}, "temperature": 1e999')
    )
    assert (request.model, request.stream, request.sequences, request.max_output_tokens) == ("m", True, 3, 7)
    assert request.user == "u"
    assert not request.include_usage


def test_chat_with_nulls_and_duplicates():
    request = parse_chat(chat('"stream": null, "n": null, "max_tokens": null, "stream_options": null, "model": "b"'))
    assert (request.model, request.stream, request.sequences, request.max_output_tokens) == ("b", None, 1, None)


def test_limits_are_the_engines_to_judge():
    request = parse_chat(chat('"max_tokens": 123456789012345678901234567890, "n": -1, "max_completion_tokens": 0'))
    assert request.max_output_tokens == 0
    assert request.sequences == 1


def test_include_usage():
    assert parse_chat(chat('"stream_options": {"include_usage": true}')).include_usage
    assert not parse_chat(chat('"stream_options": {"include_usage": false}')).include_usage


@pytest.mark.parametrize(
    ("prompt", "count"),
    [('"x"', 1), ('["x", "y"]', 2), ("[1, 2]", 1), ("[ [1], [2], [3] ]", 3), ('""', 1)],
)
def test_completion_prompts(prompt, count):
    request = parse_completion(b'{"model": "m", "n": 2, "prompt": %b}' % prompt.encode())
    assert request.prompt_count == count
    assert request.sequences == 2 * count


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("[]", "prompt"),
        ("5", "prompt"),
        ("null", "prompt"),
        ("{}", "prompt"),
        ("[{}]", "prompt"),
        ("[true]", "prompt"),
        ('[1, "x"]', "prompt[1]"),
        ('["x", 1]', "prompt[1]"),
        ('[[1], ["x"]]', "prompt[1][0]"),
        ("[1.5]", "prompt[0]"),
    ],
)
def test_bad_completion_prompts(prompt, param):
    with pytest.raises(BadRequest, match="prompt") as caught:
        parse_completion(b'{"model": "m", "prompt": %b}' % prompt.encode())
    assert caught.value.param == param


def test_completion_without_prompt():
    with pytest.raises(BadRequest, match="prompt: this field is required"):
        parse_completion(b'{"model": "m"}')


def test_passed_through_apis_need_only_a_model():
    assert parse_embedding(b'{"model": "e", "input": [1, 2]}').model == "e"
    assert parse_responses(b'{"model": "r", "input": {"any": 1}, "stream": true}').stream
    for parse in (parse_embedding, parse_responses):
        with pytest.raises(BadRequest, match="model"):
            parse(b'{"input": "x"}')


def test_prompt_bytes_of_a_growing_chat_are_a_prefix():
    turns = [
        '{"role": "user", "content": "a]"}',
        '{"role": "assistant", "content": "b"}',
        '{"role":"user","content":"c"}',
    ]
    for spaces in ("", "  "):
        prompts = [
            prompt_bytes(parse_chat(chat(messages='"messages":' + spaces + "[" + ", ".join(turns[:n]) + spaces + "]")))
            for n in (1, 2, 3)
        ]
        assert prompts[2].startswith(prompts[1])
        assert prompts[1].startswith(prompts[0])
        assert prompts[0].endswith(b"}")


def test_prompt_bytes_of_completions():
    def of(prompt: bytes) -> bytes:
        return prompt_bytes(parse_completion(b'{"model":"m","prompt":%b}' % prompt))

    assert of(b'"a b"') == b'"a b'
    assert of(b'"a b "') == b'"a b '
    assert of(b"[1, 2 ]") == b"[1, 2"


def test_prefix_salt():
    assert prefix_salt(parse_chat(chat('"tools": [{"a": 1}], "cache_salt": "s"'))) == (b'[{"a": 1}]', b"s")
    assert prefix_salt(parse_chat(chat())) == (b"", b"")
    assert prefix_salt(parse_completion(b'{"model":"m","prompt":"x","cache_salt":"s"}')) == (b"", b"s")


def test_error_body_has_openais_shape():
    assert json.loads(error_body(404, "no such model", param="model", code="model_not_found")) == {
        "error": {"message": "no such model", "type": "not_found_error", "param": "model", "code": "model_not_found"}
    }
    assert json.loads(error_body(502, 'a "quote"', type="own"))["error"] == {
        "message": 'a "quote"',
        "type": "own",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "service_unavailable_error"),
    ],
)
def test_error_types(status, name):
    assert error_type(status) == name
