"""From messages to text, as vLLM and as SGLang do it. The expectations were seen at these engines."""

from __future__ import annotations

import json

import pytest

from pointsman.edge.prompts.chat import ChatRenderer, PromptText
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason
from pointsman.edge.prompts.meter import Meter
from pointsman.edge.wire.openai import parse_chat

DUMP = "{{ messages | tojson }}"
"""Shows all that a template gets."""
DUMP_PARTS = DUMP + "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}"
KNOWS_DEVELOPER = DUMP + "{# 'developer' #}"
SHOW = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text if p.type == 'text' else '<' ~ p.type ~ '>' }}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALL = {"type": "function", "id": "1", "more": 0, "function": {"name": "f", "arguments": '{"b": 1.0, "a": "é"}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def text(template: str | dict[str, str], dialect: Dialect = Dialect.VLLM, **body: object) -> PromptText:
    templates = {"default": template} if isinstance(template, str) else template
    request = parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}).encode())
    return ChatRenderer(templates, {}, dialect).text(request, Meter(10_000, 100_000))


def seen(message: dict[str, object], template: str = DUMP, dialect: Dialect = Dialect.VLLM) -> object:
    """What the template sees of one message."""
    messages = [{"role": "user", "content": "q"}, message, {"role": "user", "content": "r"}]
    return json.loads(text(template, dialect, messages=messages).text)[1]


def part(*texts: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": content} for content in texts]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user", "content": part("a", "", "b"), "extra": 1}, {"role": "user", "content": "a\nb"}),
        ({"role": "user", "content": ["a", {"type": "refusal", "refusal": "b"}]}, {"role": "user", "content": "a\nb"}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        ({"role": "any", "content": "a", "name": "n"}, {"role": "any", "content": "a", "name": "n"}),
        ({"role": "system", "content": "x-anthropic-billing-header: 1\nb"}, {"role": "system", "content": "b"}),
        ({"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "tool", "content": part("a", "b"), "tool_call_id": "1"},
            {"role": "tool", "content": "a\nb", "tool_call_id": "1"},
        ),
    ],
)
def test_messages_in_vllm(given: dict[str, object], expected: dict[str, object]) -> None:
    assert seen(given) == expected


def test_parts_in_vllm_for_a_template_that_loops_over_them() -> None:
    extra = {"type": "text", "text": "a", "cache": 1}

    assert seen({"role": "user", "content": [extra, "b"]}, DUMP_PARTS) == {
        "role": "user",
        "content": [extra, *part("b")],
    }
    assert seen({"role": "user", "content": "a"}, DUMP_PARTS) == {"role": "user", "content": part("a")}
    assert seen({"role": "tool", "content": "a"}, DUMP_PARTS) == {"role": "tool", "content": "a"}


def test_tool_calls_have_the_order_of_vllms_types() -> None:
    found = text("{{ messages[0].tool_calls | tojson }}", messages=[{"role": "assistant", "tool_calls": [CALL]}])

    assert found.text == (
        '[{"id": "1", "function": {"arguments": {"b": 1.0, "a": "é"}, "name": "f"}, "type": "function", "more": 0}]'
    )


@pytest.mark.parametrize(("arguments", "object_"), [("", {}), ("[1]", {}), ("{bad", {}), ('{"a": 1}', {"a": 1})])
def test_arguments_are_always_an_object_in_vllm(arguments: str, object_: object) -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}

    found = seen({"role": "assistant", "tool_calls": [call]})

    assert found["tool_calls"][0]["function"]["arguments"] == object_


def test_developers_become_one_system_message_where_the_template_knows_none() -> None:
    messages = [{"role": "user", "content": "q"}]
    messages += [{"role": role, "content": role} for role in ("developer", "system")]

    assert json.loads(text(DUMP, messages=messages).text) == [
        {"role": "system", "content": "developer\n\nsystem"},
        {"role": "user", "content": "q"},
    ]
    kept = json.loads(text(KNOWS_DEVELOPER, messages=messages).text)
    assert [message["role"] for message in kept] == ["user", "developer", "system"]


def test_tools_in_vllm() -> None:
    tool = {"function": {"parameters": {"type": "object"}, "name": "f", "strict": None, "more": 1}, "more": 2}

    found = text("{{ tools | tojson }}", tools=[tool], tool_choice="none").text

    assert found == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}]'
    )


def test_tools_in_sglang() -> None:
    tool = {"type": "function", "function": {"parameters": {}, "name": "f", "strict": None, "more": 1}}
    other = {"type": "function", "function": {"name": "g", "description": "d", "strict": True}}

    shown = "{{ tools | tojson }}"
    chosen = {"type": "function", "function": {"name": "g"}}

    assert text(shown, Dialect.SGLANG, tools=[tool]).text == (
        '[{"type": "function", "function": {"parameters": {}, "name": "f", "description": null}, '
        '"defer_loading": null}]'
    )
    assert '"f"' not in text(shown, Dialect.SGLANG, tools=[tool, other], tool_choice=chosen).text
    assert text(shown, Dialect.SGLANG, tools=[tool], tool_choice="none").text == "null"


def test_sglang_tries_bare_functions_where_a_template_fails_with_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}

    assert text("{{ tools[0]['name'] + '!' }}", Dialect.SGLANG, tools=[tool]).text == "f!"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user", "content": part("a", "", "b"), "name": "n"}, {"role": "user", "content": "a  b"}),
        ({"role": "System", "content": None, "name": "n"}, {"role": "system", "content": "", "name": "n"}),
        (
            {"role": "tool", "content": part("a"), "tool_call_id": "1"},
            {"role": "tool", "content": "a", "tool_call_id": "1"},
        ),
        ({"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "assistant", "content": "a"}),
    ],
)
def test_messages_in_sglang(given: dict[str, object], expected: dict[str, object]) -> None:
    assert seen(given, dialect=Dialect.SGLANG) == expected


def test_the_last_answer_in_sglang() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so "}]

    continued = text(SHOW, Dialect.SGLANG, messages=messages, continue_final_message=True)

    assert (continued.text, continued.appended) == ("<user>q<assistant>", "so ")
    assert text(SHOW, Dialect.SGLANG, messages=messages).text == "<user>q<user>so <assistant>"


def test_results_that_sglang_would_sort() -> None:
    calls = [{**CALL, "id": name} for name in ("1", "2")]
    results = [{"role": "tool", "content": name, "tool_call_id": name} for name in ("1", "2")]
    shows = "{{ messages | length }}{# tool_call_id #}"
    question = {"role": "assistant", "content": "", "tool_calls": calls}

    assert text(shows, Dialect.SGLANG, messages=[question, *results]).text == "3"
    with pytest.raises(NotTokenizable, match="sorts"):
        text(shows, Dialect.SGLANG, messages=[question, *reversed(results)])


def test_flags_of_the_body() -> None:
    last = {"role": "assistant", "content": "so "}

    assert text(SHOW, add_generation_prompt=False).text == "<user>hi"
    assert (
        text(SHOW, messages=[last], add_generation_prompt=False, continue_final_message=True).text == "<assistant>so "
    )
    assert text(SHOW, add_special_tokens=True).add_special_tokens


def test_variables_of_the_body() -> None:
    shows = "{{ a }} {{ b is defined }} {{ reasoning_effort }} {{ enable_thinking }}"
    given = {"chat_template_kwargs": {"a": 1, "b": None}, "reasoning_effort": "low"}

    assert text(shows, **given).text == "1 False low True"
    assert text(shows, Dialect.SGLANG, **given).text == "1 True low "


def test_named_templates() -> None:
    named = {"default": "plain", "tool_use": "tools"}
    tool = {"type": "function", "function": {"name": "f"}}

    assert text(named).text == "plain"
    assert text(named, tools=[tool]).text == "tools"
    with pytest.raises(NotTokenizable, match="it has: rag") as caught:
        text({"rag": "x"})
    assert caught.value.reason is Reason.NO_TEMPLATE


@pytest.mark.parametrize("dialect", Dialect)
def test_before_the_first_image_all_is_certain(dialect: Dialect) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [*part("look: "), IMAGE, *part("what is it?")]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "q"},
    ]

    found = text(SHOW, dialect, messages=messages)

    assert (found.text, found.complete) == ("<system>s<user>look: ", False)


def test_images_that_change_what_comes_first_leave_less_certain() -> None:
    shows = "{% for m in messages %}{% for p in m.content if p.type == 'image' %}IMAGES {% endfor %}{% endfor %}" + SHOW

    found = text("begin: " + shows, messages=[{"role": "user", "content": [*part("look"), IMAGE]}])

    assert found.text == "begin: IMAGES <user>look"
    hides = "{% if messages[0].content | length > 2 %}long{% else %}short{% endif %}" + SHOW
    assert text(hides, messages=[{"role": "user", "content": [*part("look"), IMAGE]}]).text == ""


def test_images_for_a_template_of_strings_come_before_the_text() -> None:
    shows = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

    found = text(shows, messages=[{"role": "user", "content": [*part("look"), IMAGE]}])

    assert (found.text, found.complete) == ("<user>", False)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"chat_template": "x"}, Reason.OWN_TEMPLATE),
        ({"chat_template_kwargs": {"tokenize": True}}, Reason.UNUSUAL_FIELD),
        ({"chat_template_kwargs": [1]}, Reason.UNUSUAL_FIELD),
        ({"truncate_prompt_tokens": 5}, Reason.UNUSUAL_FIELD),
        ({"add_generation_prompt": "yes"}, Reason.UNUSUAL_FIELD),
        ({"continue_final_message": True}, Reason.UNUSUAL_FIELD),
        ({"tools": []}, Reason.UNUSUAL_FIELD),
        ({"tools": [{"type": "function"}]}, Reason.UNUSUAL_FIELD),
        ({"documents": "x"}, Reason.UNUSUAL_FIELD),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, Reason.UNUSUAL_FIELD),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, Reason.MULTIMODAL),
        ({"messages": [{"role": "user", "content": [{**IMAGE, "uuid": "u"}]}]}, Reason.MULTIMODAL),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, Reason.UNUSUAL_FIELD),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": 1}]}]}, Reason.UNUSUAL_FIELD),
    ],
)
def test_what_can_t_be_known(body: dict[str, object], reason: Reason) -> None:
    with pytest.raises(NotTokenizable) as caught:
        text(DUMP_PARTS, **body)

    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "message",
    [
        {"role": "wizard", "content": "a"},
        {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}]},
        {"role": "system", "content": "a", "tools": [{}]},
    ],
)
def test_what_sglang_refuses(message: dict[str, object]) -> None:
    with pytest.raises(NotTokenizable):
        seen(message, dialect=Dialect.SGLANG)
