"""Models from where they may come, with their text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.gguf_text import gguf_end_ids, gguf_text
from pointsman.edge.engines.embedded.loaded_model import load_model
from pointsman.edge.engines.embedded.model_config import Family
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER
from pointsman.edge.engines.openai_server.requests import ChatBody, parse
from support.embedded_models import greedy
from support.model_files import write_hub_folder

CHAT = b'{"messages": [{"role": "user", "content": "the river"}]}'


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_hub_directory_is_the_model_that_was_written_there(tmp_path: Path, family: Family) -> None:
    loaded = load_model(str(write_hub_folder(tmp_path / "tiny", seed=5, family=family)))
    assert (loaded.name, loaded.root) == ("tiny", str(tmp_path / "tiny"))
    assert (loaded.config.family, loaded.defaults.eos_ids) == (family, (END_OF_ANSWER,))
    seed = load_model("seed:5")
    prompt = loaded.text.chat(parse(CHAT, ChatBody), CHAT)
    assert prompt == seed.text.chat(parse(CHAT, ChatBody), CHAT)
    if family == "llama":
        assert greedy(loaded.decoder, prompt, 8) == greedy(seed.decoder, prompt, 8)


def test_what_the_model_says_of_its_answers_holds_by_default(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path)
    said = {"eos_token_id": [2, 7], "temperature": 0.6, "top_k": 20, "do_sample": True, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(said))
    defaults = load_model(str(folder)).defaults
    assert defaults.eos_ids == (2, 7)
    assert defaults.sampling == {"temperature": 0.6, "top_k": 20.0}


def test_a_model_may_have_no_chat_template(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    text = load_model(str(folder)).text
    with pytest.raises(Exception, match="no chat template"):
        text.chat(parse(CHAT, ChatBody), CHAT)
    assert text.encode("the river")


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("config.json"), "has no config.json"),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (remove("model.safetensors"), "has neither model.safetensors nor"),
        (write("tokenizer.json", "{"), "tokenizer.json: not a tokenizer"),
        (write("config.json", '{"model_type": "mamba"}'), "config.json: "),
        (write("tokenizer_config.json", '{"chat_template": "{% if"}'), "the chat template can't be compiled"),
        (write("generation_config.json", '{"top_k": "x"}'), r"generation_config.json: .*top_k"),
    ],
)
def test_a_broken_directory_is_named(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(write_hub_folder(tmp_path))
    with pytest.raises(ModelFileError, match=message):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("seed:", "'' is no number"),
        ("seed:-1", "'-1' is no number"),
        ("/absent/model", "there is no such file or directory; give a directory"),
    ],
)
def test_a_model_that_is_none_is_named(model: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_model(model)


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(ModelFileError, match=r"x.gguf: can't be read as a GGUF file"):
        load_model(str(tmp_path / "x.gguf"))


BYTES = ["<s>", "</s>", "<|end|>", *(chr(number) for number in range(33, 127)), "\u0120", "\u010a", "\u00c3", "\u00a9"]
WORDS = ["12", "\u0120t", "he", "\u0120the", "34", "1234", "'s"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*BYTES, *WORDS, "added"],
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(BYTES) - 3 + len(WORDS)), 4],
    "tokenizer.ggml.merges": ["1 2", "\u0120 t", "h e", "\u0120t he", "3 4", "12 34", "' s"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 2,
    "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}",
}


def pieces(text: str, **changes: object) -> list[str]:
    metadata = METADATA | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    made = gguf_text(metadata, len(METADATA["tokenizer.ggml.tokens"]), "m")
    return [METADATA["tokenizer.ggml.tokens"][token] for token in made.encode(text)]


def test_the_text_of_a_gguf_file_is_cut_as_its_model_was_taught() -> None:
    assert pieces("the 1234's") == ["t", "he", "\u0120", "1234", "'s"]
    assert pieces(" the 1234", pre="smollm") == ["\u0120the", "\u0120", "1", "2", "3", "4"]
    assert pieces("1234", pre="qwen2") == ["1", "2", "3", "4"]
    assert pieces("1234", pre="llama-bpe") == ["<s>", "12", "3", "4"]
    assert pieces("1234", pre="llama-bpe", add_bos_token=False) == ["12", "3", "4"]
    assert pieces("12", add_bos_token=True) == ["<s>", "12"]
    assert pieces("the<|end|>addedt") == ["t", "he", "<|end|>", "added", "t"]
    assert pieces("e\u0301", pre="qwen2") == ["\u00c3", "\u00a9"], "composed first"


def test_the_chat_template_of_a_gguf_file_is_used() -> None:
    text = gguf_text(METADATA, 200, "m")
    assert (text.vocabulary, gguf_end_ids(METADATA)) == (200, (1, 2))
    tokens = text.chat(parse(CHAT, ChatBody), CHAT)
    assert text.decode(tokens) == "<s>the river<|end|>"
    assert text.decode(tokens, skip_special_tokens=True) == "the river"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "its tokenizer is of type 'llama', only 'gpt2'"),
        ({"pre": "tekken"}, "in the way 'tekken' before it is tokenized; known are default"),
        ({"merges": ["no such", "pairs"]}, "its tokenizer can't be used"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"m: .*{message}"):
        pieces("x", **changes)


def test_a_gguf_file_without_a_vocabulary_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"m: tokenizer.ggml.tokens is missing"):
        gguf_text({"tokenizer.ggml.model": "gpt2"}, 10, "m")
    with pytest.raises(ModelFileError, match="chat template can't be compiled"):
        gguf_text(METADATA | {"tokenizer.chat_template": "{% if"}, 10, "m")
