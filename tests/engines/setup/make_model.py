"""Makes a tiny Llama with random weights and a tokenizer of its own, so that real engines start without a download.

Run by `scripts/test-engines` with the engines' Python: `make_model.py FOLDER`. The text it generates is noise, but the
same noise every time: the seed is fixed.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import tokenizers
import torch
import transformers

SPECIAL_TOKENS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the standard library's own text."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2048, special_tokens=SPECIAL_TOKENS, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([inspect.getsource(inspect)], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|end|>",
        eos_token="<|end|>",
        pad_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
    )


def make_llama(vocabulary: int) -> transformers.LlamaForCausalLM:
    """Two layers, 0.8 million parameters."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    make_llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder.name}: vocabulary {len(tokenizer)}")


if __name__ == "__main__":
    main()
