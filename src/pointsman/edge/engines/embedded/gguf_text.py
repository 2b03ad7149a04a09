"""The tokenizer and chat template that a GGUF file carries: byte-level BPE, as Llama 3, Qwen and SmolLM have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.text import ModelText
from pointsman.edge.prompts.chat import ChatRenderer
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import TokenizerFilesError

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens: such as the end of a turn; whole words that were added."""
_BPE = "gpt2"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _WORDS.replace("NUMBERS", r"\p{N}")
_LLAMA3 = _WORDS.replace("NUMBERS", r"\p{N}{1,3}")


def gguf_text(metadata: Mapping[str, Any], vocabulary: int, where: str) -> ModelText:
    """From the file's metadata. Raises ModelFileError that says what is missing or not known."""
    tokenizer = _tokenizer(metadata, where)
    tokens = metadata["tokenizer.ggml.tokens"]
    template = metadata.get("tokenizer.chat_template")
    renderer = None
    if isinstance(template, str):
        named = {}
        for name in ("bos", "eos"):
            number = metadata.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(number, int) and number < len(tokens):
                named[f"{name}_token"] = str(tokens[number])
        try:
            renderer = ChatRenderer({"default": template}, named, Dialect.VLLM)
        except TokenizerFilesError as error:
            raise ModelFileError(f"{where}: {error}") from None
    return ModelText(tokenizer, renderer, vocabulary=vocabulary)


def gguf_end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens with which an answer ends."""
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return tuple(dict.fromkeys(number for number in found if isinstance(number, int)))


def _tokenizer(metadata: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != _BPE:
        raise ModelFileError(
            f"{where}: its tokenizer is of type {kind!r}, only {_BPE!r} (byte-level BPE) is known; give the model's "
            "Hugging Face directory instead"
        )
    try:
        tokens = list(metadata["tokenizer.ggml.tokens"])
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        kinds = list(metadata["tokenizer.ggml.token_type"])
    except KeyError as error:
        raise ModelFileError(f"{where}: {error.args[0]} is missing") from None
    way = metadata.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=way == "llama-bpe"))
    except Exception as error:  # the library raises nothing more specific
        raise ModelFileError(f"{where}: its tokenizer can't be used: {error}") from None
    tokenizer.pre_tokenizer = _splitter(way, where)
    tokenizer.decoder = decoders.ByteLevel()
    if way == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    for number, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind == number
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", way == "llama-bpe") and isinstance(bos, int):
        name = str(tokens[bos])
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=f"{name}:0 $A:0", pair=None, special_tokens=[(name, bos)]),
            ]
        )
    return tokenizer


def _splitter(way: object, where: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before pieces of it become tokens."""
    if way in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if way == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if way in ("qwen2", "llama-bpe"):
        words = Regex(_QWEN if way == "qwen2" else _LLAMA3)
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(words, behavior="isolated"), bytes_only])
    raise ModelFileError(
        f"{where}: text is cut in the way {way!r} before it is tokenized; known are default, gpt-2, smollm, qwen2 and "
        "llama-bpe. Give the model's Hugging Face directory instead"
    )
