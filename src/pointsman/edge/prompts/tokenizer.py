"""A model's tokenizer, as transformers sets it up, with its boundaries and its cache of encoded pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from pointsman.core.model.token_keys import TOKEN_BYTES, pack_tokens
from pointsman.edge.prompts.boundaries import AddedToken, Boundaries
from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.prefix_cache import PrefixCache
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "a b"


class PromptTokenizer:
    """Text → packed tokens. Safe to use from several threads; long texts don't hold the interpreter's lock."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, cache: PrefixCache, *, split_special_tokens: bool = False
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = split_special_tokens
        self._tokenizer = tokenizer
        self.cache = cache
        added = () if split_special_tokens else tokenizer.get_added_tokens_decoder().values()
        self._boundaries = Boundaries(
            AddedToken(token.content, token.lstrip, token.single_word, token.normalized) for token in added
        )
        self._around = self._find_around()

    def cut(self, text: str) -> list[str]:
        """Pieces that can be tokenized apart."""
        return self._boundaries.cut(text)

    def cut_prefix(self, text: str) -> list[str]:
        """Pieces with which every text begins that begins with this one."""
        return self._boundaries.cut_prefix(text)

    def token_id(self, content: str) -> int | None:
        """Id of one token."""
        return self._tokenizer.token_to_id(content)

    def encode_piece(self, piece: str) -> bytes:
        """Packed tokens of one piece, without special tokens around it and without the cache."""
        return pack_tokens(self._tokenizer.encode(piece, add_special_tokens=False).ids)

    def wrap(self, packed: bytes, text: str, add_special_tokens: bool) -> bytes:
        """With the special tokens that the tokenizer puts around a text, if they are wanted."""
        if not add_special_tokens:
            return packed
        if self._around is None:
            return pack_tokens(self._tokenizer.encode(text, add_special_tokens=True).ids)
        before, after = self._around
        return before + packed + after

    def _find_around(self) -> tuple[bytes, bytes] | None:
        """Tokens before and after; None if what the tokenizer adds does not just stand around the text."""
        bare = self.encode_piece(_PROBE)
        whole = pack_tokens(self._tokenizer.encode(_PROBE, add_special_tokens=True).ids)
        starts = [at for at in range(0, len(whole), TOKEN_BYTES) if whole.startswith(bare, at)]
        if not bare or len(starts) != 1:
            return None
        return whole[: starts[0]], whole[starts[0] + len(bare) :]


def load_tokenizer(files: TokenizerFiles, cache: PrefixCache) -> PromptTokenizer:
    """Takes up to seconds, so not on the event loop. Raises TokenizerFilesError."""
    splits = files.config().get("split_special_tokens") is True
    return PromptTokenizer(read_tokenizer(files), cache, split_special_tokens=splits)


def read_tokenizer(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """`tokenizer.json`, and what the configuration adds to it. Raises TokenizerFilesError."""
    tokenizer = _read(files.tokenizer)
    _add_configured_tokens(tokenizer, files.config())
    return tokenizer


def special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """The named special tokens, which templates use as variables (`bos_token` …)."""
    texts = {name: _token_text(config.get(name)) for name in _SPECIAL_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _token_text(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise TokenizerFilesError(f"{path}: not a tokenizer: {error}; let the engine tokenize") from error


def _add_configured_tokens(tokenizer: tokenizers.Tokenizer, config: Mapping[str, object]) -> None:
    """As transformers does: tokens that only the configuration names are added, behind those of the file."""
    known = {json.dumps(_members(token)) for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    missing = []
    if isinstance(listed, dict):
        for _, entry in sorted(listed.items(), key=lambda item: int(item[0])):
            token = _added_token(entry)
            if json.dumps(_members(token)) not in known:
                missing.append(token)
    contents = {token.content for token in (*tokenizer.get_added_tokens_decoder().values(), *missing)}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    named = [config.get(name) for name in _SPECIAL_NAMES] + (extra if isinstance(extra, list) else [])
    for value in named:
        text = _token_text(value)
        if text and text not in contents:
            contents.add(text)
            missing.append(tokenizers.AddedToken(text, special=True, normalized=False))
    if missing:
        tokenizer.add_tokens(missing)


def _members(token: tokenizers.AddedToken) -> list[object]:
    return [token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special]


def _added_token(entry: object) -> tokenizers.AddedToken:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise TokenizerFilesError("tokenizer_config.json: added_tokens_decoder: expected objects with content")
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "special")}
    normalized = entry.get("normalized")
    return tokenizers.AddedToken(
        entry["content"], normalized=not flags["special"] if normalized is None else bool(normalized), **flags
    )
