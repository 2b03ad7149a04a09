"""Prompts tokenized from a directory's files, against the tokenizers library alone."""

from __future__ import annotations

import json
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import tokenizers

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import NotTokenizable, Reason, TokenizerFilesError
from pointsman.edge.prompts.local_prompts import EncodedPrompt, LocalPrompts, load_local_prompts
from pointsman.edge.prompts.meter import Meter
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.wire.openai import parse_chat, parse_completion

Load = Callable[..., Awaitable[LocalPrompts]]
MESSAGES = [{"role": "user", "content": "Where does it go?"}]


def encode(prompts: LocalPrompts, **body: object) -> EncodedPrompt:
    parse = parse_chat if "messages" in body else parse_completion
    work = prompts.prepare(parse(json.dumps({"model": "m", **body}).encode()), Meter(10_000, 100_000))
    return work if isinstance(work, EncodedPrompt) else prompts.finish(work)


def ids(prompt: EncodedPrompt) -> list[int]:
    assert prompt.count == len(prompt.tokens) // 4
    return list(array("I", prompt.tokens))


def plain(folder: Path, text: str, special: bool = False) -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=special).ids)


async def test_a_chat(load: Load, folder: Path) -> None:
    prompts = await load()

    found = ids(encode(prompts, messages=MESSAGES))

    assert found == plain(folder, "<s><|start|>user\nWhere does it go?<|end|>\n<|start|>assistant\n")
    assert ids(encode(prompts, messages=MESSAGES, add_special_tokens=True)) == [0, *found]


@pytest.mark.parametrize(
    ("prompt", "special"), [("The <|end|> dog", True), (["The dog"], True), ("The dog", False), ("", True)]
)
async def test_a_completion(load: Load, folder: Path, prompt: str | list[str], special: bool) -> None:
    text = prompt if isinstance(prompt, str) else prompt[0]

    found = ids(encode(await load(), prompt=prompt, add_special_tokens=special))

    assert found == plain(folder, text, special)


@pytest.mark.parametrize("prompt", [[1, 2, 70_000], [[1, 2, 70_000]]])
async def test_token_ids_stay_what_they_are(load: Load, prompt: object) -> None:
    assert ids(encode(await load(), prompt=prompt)) == [1, 2, 70_000]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": ["a", "b"]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": [-1]}, Reason.UNUSUAL_FIELD),
        ({"prompt": [2**32]}, Reason.UNUSUAL_FIELD),
        ({"prompt": "a", "prompt_embeds": "x"}, Reason.UNUSUAL_FIELD),
        ({"prompt": "a", "truncate_prompt_tokens": 1}, Reason.UNUSUAL_FIELD),
    ],
)
async def test_completions_that_have_no_key(load: Load, body: dict[str, object], reason: Reason) -> None:
    prompts = await load()

    with pytest.raises(NotTokenizable) as caught:
        encode(prompts, **body)

    assert caught.value.reason is reason


async def test_half_a_character_has_no_tokens(load: Load) -> None:
    prompts = await load("{{ messages[0].tool_calls[0].function.arguments.a }}")
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}

    with pytest.raises(NotTokenizable, match="characters that are none"):
        encode(prompts, messages=[{"role": "assistant", "tool_calls": [call]}])


async def test_what_sglang_goes_on_with_is_tokenized_apart(load: Load, folder: Path) -> None:
    prompts = await load(dialect=Dialect.SGLANG)
    messages = [*MESSAGES, {"role": "assistant", "content": " why"}]

    found = ids(encode(prompts, messages=messages, continue_final_message=True))

    opened = "<s><|start|>user\nWhere does it go?<|end|>\n<|start|>assistant\n"
    assert found == plain(folder, opened) + plain(folder, " why")


async def test_only_what_is_certain_before_an_image(load: Load, folder: Path) -> None:
    prompts = await load()
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [image]}]

    found = encode(prompts, messages=messages)

    assert (found.complete, found.reason is not None) == (False, True)
    assert ids(found) == plain(folder, "<s><|start|>system\nBe kind.<|end|>\n")


async def test_nothing_certain_is_no_prompt(load: Load) -> None:
    prompts = await load("{{ messages[0].content }}")
    image = {"type": "image_url", "image_url": {"url": "data:"}}

    with pytest.raises(NotTokenizable, match="nothing is certain"):
        encode(prompts, messages=[{"role": "user", "content": [image]}])


async def test_later_turns_come_from_the_cache(load: Load) -> None:
    prompts = await load()
    messages = [dict(MESSAGES[0]) for _ in range(3)]
    encode(prompts, messages=messages)
    before = prompts.cache.counts.missed_characters

    encode(prompts, messages=[*messages, {"role": "user", "content": "And why?"}])

    assert prompts.cache.counts.missed_characters - before == len("<|start|>user\nAnd why?")


def configure(folder: Path, **config: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


async def test_tokens_that_only_the_configuration_has(folder: Path, load: Load) -> None:
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    listed = {str(size): {"content": "<think>", "special": False, "normalized": False}}
    configure(folder, added_tokens_decoder=listed, pad_token="<pad>", additional_special_tokens=["<more>", "<pad>"])

    prompts = await load("x")

    assert ids(encode(prompts, prompt="<think><pad><more>", add_special_tokens=False)) == [size, size + 1, size + 2]


async def test_special_tokens_may_be_plain_text(folder: Path, load: Load) -> None:
    configure(folder, split_special_tokens=True)

    found = ids(encode(await load("x"), prompt="a<|end|>", add_special_tokens=False))

    assert len(found) > 3
    assert 2 not in found


async def test_truncation_of_the_file_is_not_followed(folder: Path, load: Load) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))

    assert encode(await load(), messages=MESSAGES).count > 9


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{}"), ("tokenizer_config.json", '{"added_tokens_decoder": {"1": "x"}}')],
)
async def test_files_that_can_t_be_used_are_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)

    with pytest.raises(TokenizerFilesError, match=name):
        await load_local_prompts(TokenizerFiles(folder, "given"), chat_template="x")
