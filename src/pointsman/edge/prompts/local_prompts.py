"""A model whose prompts are tokenized here, from its tokenizer's files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from msgspec import Raw

from pointsman.core.model.token_keys import TOKEN_BYTES, pack_tokens
from pointsman.edge.prompts import body_fields as fields
from pointsman.edge.prompts.chat import ChatRenderer, PromptText
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason
from pointsman.edge.prompts.freed_memory import give_back_freed_memory
from pointsman.edge.prompts.meter import Meter
from pointsman.edge.prompts.prefix_cache import PrefixCache
from pointsman.edge.prompts.template import LocalTime
from pointsman.edge.prompts.tokenizer import PromptTokenizer, load_tokenizer, special_tokens
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.wire.openai import ChatRequest, CompletionRequest

Body = ChatRequest | CompletionRequest
CACHE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids of a prompt."""

    tokens: bytes
    """Packed, see `core.model.token_keys.pack_tokens`."""
    complete: bool = True
    """False: the prompt begins with these, and what follows can't be known here."""
    reason: str | None = None
    """Why it is not complete."""

    @property
    def count(self) -> int:
        """Tokens."""
        return len(self.tokens) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Piecework:
    """A rendered prompt, cut in pieces, with the tokens of those that are in the cache."""

    prompt: PromptText
    pieces: list[str]
    found: list[bytes | None]

    @property
    def missing_characters(self) -> int:
        """Characters that have to be tokenized."""
        new = sum(len(piece) for piece, tokens in zip(self.pieces, self.found, strict=True) if tokens is None)
        return new + len(self.prompt.appended)


class LocalPrompts:
    """Renders and tokenizes for one model. Safe to use from several threads."""

    def __init__(self, tokenizer: PromptTokenizer, renderer: ChatRenderer, bos_token: str | None = None) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._bos_id = None if bos_token is None else tokenizer.token_id(bos_token)

    @property
    def cache(self) -> PrefixCache:
        """Pieces that were tokenized before."""
        return self._tokenizer.cache

    def prepare(self, body: Body, meter: Meter) -> Piecework | EncodedPrompt:
        """Everything but the tokenizing; the whole where the client sent token ids.

        Raises NotTokenizable, and OverBudget by the meter.
        """
        if isinstance(body, ChatRequest):
            prompt = self._renderer.text(body, meter)
        else:
            given = completion_prompt(body)
            if isinstance(given, EncodedPrompt):
                return given
            prompt = given
        meter.characters(len(prompt.text))
        cut = self._tokenizer.cut if prompt.complete else self._tokenizer.cut_prefix
        pieces = cut(prompt.text)
        return Piecework(prompt, pieces, self.cache.look_up(pieces))

    def finish(self, work: Piecework) -> EncodedPrompt:
        """Tokenize what is new. Raises NotTokenizable."""
        tokenizer = self._tokenizer
        prompt = work.prompt
        try:
            packed = self.cache.complete(work.pieces, work.found, tokenizer.encode_piece)
            packed = tokenizer.wrap(packed, prompt.text, prompt.add_special_tokens) + self._appended(prompt.appended)
        except (TypeError, UnicodeEncodeError) as error:  # half of a surrogate pair, in a tool call's arguments
            raise NotTokenizable(Reason.UNUSUAL_FIELD, f"the prompt has characters that are none: {error}") from None
        if prompt.complete:
            return EncodedPrompt(packed)
        if not packed:
            raise NotTokenizable(Reason.MULTIMODAL, "nothing is certain before the first media part")
        return EncodedPrompt(packed, complete=False, reason="what follows the first media part depends on the media")

    def _appended(self, text: str) -> bytes:
        if not text:
            return b""
        packed = self._tokenizer.wrap(self._tokenizer.encode_piece(text), text, add_special_tokens=True)
        bos = b"" if self._bos_id is None else pack_tokens([self._bos_id])
        return packed[len(bos) :] if bos and packed.startswith(bos) else packed


async def load_local_prompts(
    files: TokenizerFiles,
    *,
    dialect: Dialect = Dialect.VLLM,
    chat_template: str | None = None,
    cache_bytes: int = CACHE_BYTES,
    now: LocalTime = datetime.now,
) -> LocalPrompts:
    """Reads the files in a thread. `chat_template` replaces theirs, as an engine's `--chat-template` does.

    Raises TokenizerFilesError.
    """

    def load() -> LocalPrompts:
        named = special_tokens(files.config())
        templates = files.chat_templates() if chat_template is None else {"default": chat_template}
        renderer = ChatRenderer(templates, named, dialect, now)
        tokenizer = load_tokenizer(files, PrefixCache(cache_bytes))
        give_back_freed_memory()
        return LocalPrompts(tokenizer, renderer, named.get("bos_token"))

    return await asyncio.to_thread(load)


def completion_prompt(body: CompletionRequest) -> PromptText | EncodedPrompt:
    """A string, token ids, or a list with one of either. Several prompts share nothing that one key could stand for."""
    fields.refuse(body.prompt_embeds, "prompt_embeds")
    fields.refuse(body.truncate_prompt_tokens, "truncate_prompt_tokens")
    special = fields.flag(body.add_special_tokens, "add_special_tokens", default=True)
    prompt = fields.value(body.prompt)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise NotTokenizable(Reason.SEVERAL_PROMPTS, f"{len(prompt)} prompts in one request")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return PromptText(prompt, add_special_tokens=special)
    return _given_tokens(prompt)


def _given_tokens(prompt: object) -> EncodedPrompt:
    if not isinstance(prompt, list) or not prompt:
        raise NotTokenizable(Reason.UNUSUAL_FIELD, "prompt: expected a text or token ids")
    try:
        return EncodedPrompt(pack_tokens(prompt))
    except (OverflowError, TypeError):
        raise NotTokenizable(Reason.UNUSUAL_FIELD, "prompt: expected token ids from 0 to 4294967295") from None


def prompt_size_bytes(body: Body) -> int:
    """Bytes of JSON that a prompt is made of."""
    if isinstance(body, CompletionRequest):
        return len(bytes(body.prompt))
    raws = (body.messages, body.tools, body.documents, body.chat_template_kwargs)
    return sum(len(memoryview(raw)) for raw in raws if isinstance(raw, Raw))
