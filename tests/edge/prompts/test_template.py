"""Templates: what they find, how contents are detected, and that none can run for ever."""

from __future__ import annotations

from datetime import datetime

import jinja2
import pytest

from pointsman.edge.prompts.content_format import ContentFormat
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason, TokenizerFilesError
from pointsman.edge.prompts.meter import Meter, OverBudget
from pointsman.edge.prompts.template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


MACRO = "{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda: datetime(2026, 3, 4))


def render(source: str, messages: list[dict[str, object]] = USER, **given: object) -> str:
    return template(source).render(messages, Meter(10_000, 10_000), **given)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}", "<s>"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        (
            "{% for i in [0, 1, 2, 3] %}"
            "{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{% for i in [1, 2] | map('string') %}{{ loop.index }}/{{ loop.length }}{{ i }} {% endfor %}", "1/21 2/22 "),
        ("{% for m in messages recursive %}{{ m.content ~ 1 ~ none ~ missing }}{% else %}none{% endfor %}", "hi1None"),
        ("{% for m in missing %}{% else %}none{% endfor %}", "none"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ ('a' + 'b') * 2 }}{{ 2 ** 3 }}{{ 'x%s' % 1 }}", "abab8x1"),
    ],
)
def test_what_templates_find(source: str, text: str) -> None:
    assert render(source) == text


def test_variables_and_tools_reach_the_template() -> None:
    source = "{{ tools[0].name }}{{ documents[0].title }}{{ thinking }}{{ bos_token }}{{ add_generation_prompt }}"

    text = render(
        source,
        tools=[{"name": "f"}],
        documents=[{"title": "t"}],
        variables={"thinking": 1, "bos_token": "<b>"},
        add_generation_prompt=False,
    )

    assert text == "ft1<b>False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message') }}",
        "{{ messages[0].content.missing() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_raises_is_no_prompt(source: str) -> None:
    with pytest.raises(NotTokenizable) as caught:
        template(source).render(USER, Meter(10**6, 10_000))

    assert caught.value.reason is Reason.TEMPLATE_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% set m = messages * 99 %}" + "{% for a in m %}" * 4 + "{% endfor %}" * 4,
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(40) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ 9 ** 999999999 }}",
        "{% for i in range(5000) %}xxxxxxxxxx{% endfor %}",
    ],
)
def test_no_template_runs_for_ever_or_takes_all_memory(source: str) -> None:
    with pytest.raises(OverBudget):
        render(source)


def test_time_is_a_bound_too() -> None:
    seconds = iter(range(10_000))
    meter = Meter(10**9, 10**9, deadline_s=5, clock=lambda: next(seconds))

    with pytest.raises(OverBudget, match="too long"):
        template("{% for i in range(99999) %}{{ range(9) }}{% endfor %}").render(USER, meter)

    assert next(seconds) < 10


def test_a_template_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(TokenizerFilesError, match="can't be compiled"):
        template("{% if %}")


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}end", "so ", "[so "),
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}end", "so ", "[so"),
        (
            "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}],
            "(a)(b",
        ),
    ],
)
def test_a_message_is_continued(source: str, content: object, text: str) -> None:
    messages = [{"role": "assistant", "content": content}]

    assert template(source).render_continued(messages, Meter(1000, 1000)) == text


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("nothing", "so"),
        ("{{ messages[0].content | upper }}", "so"),
        ("{{ messages[0].content }}", [{"type": "image"}]),
    ],
)
def test_a_message_that_is_not_shown_can_t_be_continued(source: str, content: object) -> None:
    with pytest.raises(NotTokenizable):
        template(source).render_continued([{"role": "assistant", "content": content}], Meter(1000, 1000))


IN_LOOP = "{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("source", "vllm", "sglang"),
    [
        (IN_LOOP.replace("BODY", "{{ m.content }}"), "string", "string"),
        (IN_LOOP.replace("BODY", "{% for p in m.content %}{% endfor %}"), "openai", "openai"),
        (IN_LOOP.replace("BODY", "{% for p in m['content'] | list %}{% endfor %}"), "openai", "openai"),
        (IN_LOOP.replace("BODY", "{% for p in content %}{% endfor %}"), "openai", "string"),
        (IN_LOOP.replace("BODY", "{% for p, q in m.content %}{% endfor %}"), "string", "openai"),
        (
            "{% set x = messages[1:] %}{% set y = x %}{% for q in y %}{% for p in q.content %}{% endfor %}{% endfor %}",
            "openai",
            "string",
        ),
        (
            MACRO + "{% for q in messages %}{{ f(q.content) }}{% endfor %}",
            "openai",
            "string",
        ),
        (
            MACRO + "{% for q in messages %}{{ f(c=q.content) }}{% endfor %}",
            "openai",
            "string",
        ),
        ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}{{ f(1) }}", "string", "string"),
        ("{% for q in other %}{% for p in q.content %}{% endfor %}{% endfor %}", "string", "string"),
        ("{# an image #}{{ messages[0].content }}", "string", "openai"),
    ],
)
def test_how_contents_are_detected(source: str, vllm: str, sglang: str) -> None:
    found = template(source)

    assert found.content_format(Dialect.VLLM) is ContentFormat(vllm)
    assert found.content_format(Dialect.SGLANG) is ContentFormat(sglang)


def test_metering_changes_no_text() -> None:
    source = (
        "{%- macro show(m, sep='-') %}{{ m.role ~ sep ~ m.content }}{% endmacro -%}"
        "{% for m in messages if m.content %}{{ show(m) }}{{ loop.last }}{{ loop.previtem is defined }}{% endfor %}"
        "{% for k, v in {'a': [1], 'b': []} | items %}{{ k }}{% for x in v %}{{ x }}{% else %}!{% endfor %}{% endfor %}"
    )
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    messages: list[dict[str, object]] = [{"role": "user", "content": text} for text in ("a", "", "c")]

    assert render(source, messages) == plain.render(messages=messages)
