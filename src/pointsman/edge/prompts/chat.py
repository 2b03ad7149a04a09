"""From a chat request to the text that its engine tokenizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pointsman.edge.prompts import body_fields as fields
from pointsman.edge.prompts.conversation import Conversation, Dialect, Media, read_conversation
from pointsman.edge.prompts.errors import NotTokenizable, Reason
from pointsman.edge.prompts.message_parts import Message
from pointsman.edge.prompts.meter import METER, Meter
from pointsman.edge.prompts.sglang_messages import check_tool_order
from pointsman.edge.prompts.template import ChatTemplate, LocalTime
from pointsman.edge.prompts.tools import Tool, flattened, read_tools
from pointsman.edge.wire.openai import ChatRequest

_MEDIA_MARK = "POINTSMAN-MEDIA-STARTS-HERE"
_NOT_VARIABLES = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt"),
        *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", METER),
    )
)
"""Names in `chat_template_kwargs` that engines refuse, or that change more than variables of the template."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """What an engine tokenizes."""

    text: str
    complete: bool = True
    """False: only a prefix, and its end may still be tokenized in another way."""
    add_special_tokens: bool = False
    appended: str = ""
    """A text whose tokens SGLang makes apart: the message that is to be continued."""


class ChatRenderer:
    """A model's templates, used as engines of one kind use them."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        dialect: Dialect,
        now: LocalTime = datetime.now,
    ) -> None:
        """Raises TokenizerFilesError for a template that can't be compiled."""
        self.dialect = dialect
        self._templates = {name: ChatTemplate(source, special_tokens, now) for name, source in templates.items()}

    def text(self, request: ChatRequest, meter: Meter) -> PromptText:
        """Raises NotTokenizable and OverBudget."""
        fields.refuse(request.chat_template, "chat_template", Reason.OWN_TEMPLATE)
        fields.refuse(request.truncate_prompt_tokens, "truncate_prompt_tokens")
        messages = fields.array(request.messages, "messages")
        if not messages:
            raise NotTokenizable(Reason.UNUSUAL_FIELD, "messages: empty")
        tools = read_tools(fields.array(request.tools, "tools"), fields.value(request.tool_choice), self.dialect)
        template = self._template(tools)
        conversation = read_conversation(messages, self.dialect, template.content_format(self.dialect))
        if self.dialect is Dialect.SGLANG:
            return self._sglang_text(request, template, conversation, tools, meter)
        return self._vllm_text(request, template, conversation, tools, meter)

    def _template(self, tools: list[Tool] | None) -> ChatTemplate:
        names = ("tool_use", "default") if tools is not None else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        known = ", ".join(sorted(self._templates)) or "none"
        raise NotTokenizable(Reason.NO_TEMPLATE, f"the tokenizer has no default chat template; it has: {known}")

    def _vllm_text(
        self,
        request: ChatRequest,
        template: ChatTemplate,
        conversation: Conversation,
        tools: list[Tool] | None,
        meter: Meter,
    ) -> PromptText:
        opens_answer = fields.flag(request.add_generation_prompt, "add_generation_prompt", default=True)
        continues = fields.flag(request.continue_final_message, "continue_final_message", default=False)
        special = fields.flag(request.add_special_tokens, "add_special_tokens", default=False)
        if opens_answer and continues:
            raise NotTokenizable(
                Reason.UNUSUAL_FIELD, "continue_final_message without add_generation_prompt: false, which vLLM refuses"
            )
        documents = fields.array(request.documents, "documents")
        variables = _vllm_variables(request)

        def render(messages: list[Message]) -> str:
            if not template.knows_developer and any(message["role"] == "developer" for message in messages):
                messages = _developer_as_system(messages)
            if continues:
                return template.render_continued(messages, meter, tools=tools, documents=documents, variables=variables)
            return template.render(
                messages,
                meter,
                tools=tools,
                documents=documents,
                add_generation_prompt=opens_answer,
                variables=variables,
            )

        if conversation.media is not None:
            return PromptText(_certain_prefix(conversation, conversation.media, render), complete=False)
        return PromptText(render(conversation.messages), add_special_tokens=special)

    def _sglang_text(
        self,
        request: ChatRequest,
        template: ChatTemplate,
        conversation: Conversation,
        tools: list[Tool] | None,
        meter: Meter,
    ) -> PromptText:
        continues = fields.flag(request.continue_final_message, "continue_final_message", default=False)
        variables = _sglang_variables(request)

        def render(messages: list[Message]) -> str:
            try:
                return template.render(messages, meter, tools=tools, variables=variables)
            except NotTokenizable:
                if not tools:
                    raise
                return template.render(messages, meter, tools=flattened(tools), variables=variables)

        if template.matches_tool_calls:
            check_tool_order(conversation.messages)
        messages, appended = _sglang_ending(conversation.messages, continues)
        if conversation.media is not None:
            shortened = Conversation(messages, conversation.media)
            return PromptText(_certain_prefix(shortened, conversation.media, render), complete=False)
        return PromptText(render(messages), appended=appended)


def _vllm_variables(request: ChatRequest) -> dict[str, object]:
    """vLLM leaves out what is null or "auto"."""
    given = _variables(request)
    effort = fields.value(request.reasoning_effort)
    if effort is not None:
        given = {"enable_thinking": effort != "none", **given, "reasoning_effort": effort}
    return {name: value for name, value in given.items() if value not in (None, "auto")}


def _sglang_variables(request: ChatRequest) -> dict[str, object]:
    effort = fields.value(request.reasoning_effort)
    return ({} if effort is None else {"reasoning_effort": effort}) | _variables(request)


def _variables(request: ChatRequest) -> dict[str, object]:
    variables = fields.mapping(request.chat_template_kwargs, "chat_template_kwargs")
    taken = _NOT_VARIABLES & variables.keys()
    if taken:
        raise NotTokenizable(Reason.UNUSUAL_FIELD, f"chat_template_kwargs: has {', '.join(sorted(taken))}")
    return variables


def _developer_as_system(messages: list[Message]) -> list[Message]:
    """As vLLM does for templates that don't know the role: one system message, at the front."""
    renamed = [
        {name: value for name, value in message.items() if name != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    if not any(message["role"] == "system" for message in renamed[1:]):
        return renamed
    texts = [_plain_text(message.get("content")) for message in renamed if message["role"] == "system"]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _plain_text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if "text" in part)
    return content if isinstance(content, str) else ""


def _sglang_ending(messages: list[Message], continues: bool) -> tuple[list[Message], str]:
    """SGLang appends the tokens of a message to be continued, and makes another last answer the user's words."""
    last = messages[-1]
    content = last.get("content")
    if last["role"] != "assistant" or not isinstance(content, str):
        return messages, ""
    if continues and len(messages) == 1:
        raise NotTokenizable(Reason.UNUSUAL_FIELD, "continue_final_message: SGLang wants a message before the last one")
    if continues:
        return messages[:-1], content
    return [*messages[:-1], {"role": "user", "content": content}], ""


def _certain_prefix(conversation: Conversation, media: Media, render: Callable[[list[Message]], str]) -> str:
    """The text before the first media part, which is found by a mark in its place.

    Where the template sees the parts, it is also rendered without the mark: what both begin with is what the engine
    begins with, even if the template says something else up front when there are media.
    """
    messages = conversation.messages
    message = messages[media.message]
    content = message.get("content")
    if isinstance(content, list):
        marked: object = [*content[: media.part], {"type": "text", "text": _MEDIA_MARK}, *content[media.part :]]
    else:
        marked = f"{_MEDIA_MARK}{content}"
    with_mark = render([*messages[: media.message], {**message, "content": marked}, *messages[media.message + 1 :]])
    at = with_mark.find(_MEDIA_MARK)
    if at < 0:
        raise NotTokenizable(Reason.MULTIMODAL, "the chat template does not show where the media stand")
    if not isinstance(content, list):
        return with_mark[:at]
    return _common_prefix(with_mark[:at], render(messages))


def _common_prefix(one: str, other: str) -> str:
    if other.startswith(one):
        return one
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[:middle]):
            low = middle
        else:
            high = middle - 1
    return one[:low]
