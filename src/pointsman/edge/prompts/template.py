"""One chat template: Jinja as transformers sets it up, rendered within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from pointsman.edge.prompts.content_format import ContentFormat, sglang_content_format, vllm_content_format
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason, TokenizerFilesError
from pointsman.edge.prompts.message_parts import Message
from pointsman.edge.prompts.meter import METER, Meter, MeteredEnvironment, OverBudget, metering_filters

_CONTINUED = "POINTSMAN_CONTINUES_HERE "
"""Ends the message that is to be continued. The blank shows whether the template strips contents."""

LocalTime = Callable[[], datetime]


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training. Rendered like its contents."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled template. Rendering from several threads at once is fine."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: LocalTime = datetime.now) -> None:
        """Raises TokenizerFilesError for a template that can't be compiled."""
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TokenizerFilesError(f"the chat template can't be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._formats = {
            Dialect.VLLM: vllm_content_format(tree),
            Dialect.SGLANG: sglang_content_format(tree, source),
        }
        self.matches_tool_calls = "tool_call_id" in source
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def content_format(self, dialect: Dialect) -> ContentFormat:
        """What engines of a kind give this template as content."""
        return self._formats[dialect]

    def render(
        self,
        messages: Sequence[Message],
        meter: Meter,
        *,
        tools: Sequence[object] | None = None,
        documents: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text. Raises NotTokenizable when the template raises, and OverBudget."""
        values: dict[str, object] = {
            **self._special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            METER: meter,
        }
        pieces: list[str] = []
        characters = 0
        try:
            for piece in self._template.generate(values):
                characters += len(piece)
                meter.characters(characters)
                pieces.append(piece)
        except OverBudget:
            raise
        except Exception as error:
            # A template is a program: anything may come out of it, and the engine then refuses the request.
            raise NotTokenizable(Reason.TEMPLATE_FAILED, f"the chat template raised: {error}") from error
        return "".join(pieces)

    def render_continued(
        self,
        messages: Sequence[Message],
        meter: Meter,
        *,
        tools: Sequence[object] | None = None,
        documents: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text up to the end of the last message's content, which the model goes on with."""
        final, text = _marked(messages[-1])
        marked = [*messages[:-1], final]
        rendered = self.render(
            marked, meter, tools=tools, documents=documents, add_generation_prompt=False, variables=variables
        )
        at = rendered.rfind(_CONTINUED.strip())
        if at < 0 or text.strip() not in rendered:
            raise NotTokenizable(Reason.TEMPLATE_FAILED, "the chat template does not show the message to be continued")
        return rendered[:at] if rendered.startswith(_CONTINUED, at) else rendered[:at].rstrip()


def _marked(message: Message) -> tuple[Message, str]:
    """The message with the mark behind its last text, and that text."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUED}, content
    if isinstance(content, list):
        for at in range(len(content) - 1, -1, -1):
            part = content[at]
            if "text" in part:
                marked = [*content[:at], {**part, "text": part["text"] + _CONTINUED}, *content[at + 1 :]]
                return {**message, "content": marked}, part["text"]
    raise NotTokenizable(Reason.UNUSUAL_FIELD, "continue_final_message: the last message has no text")


def _environment(now: LocalTime) -> MeteredEnvironment:
    environment = MeteredEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters.update(metering_filters(), tojson=_to_json)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=lambda form: now().strftime(form))
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not jinja2's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
