"""The text of models that are made from a seed: bytes and some English words, the same everywhere."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pointsman.edge.engines.embedded.text import ModelText
from pointsman.edge.prompts.chat import ChatRenderer
from pointsman.edge.prompts.conversation import Dialect

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_ANSWER = 2
"""Id of the token with which an answer ends."""
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they one you "
    "all her she out so up said what its than into them can only time new some two may then do any like my now over "
    "such our man me even most made also did many off must well back way down long just each say how work life never "
    "day got good world very year still see own old much where who will no more if about get through take know "
)


def tiny_text() -> ModelText:
    """Made in a few milliseconds."""
    words = dict.fromkeys(_WORDS.split())
    # A space as byte-level tokenizers write it. The fewest tokens win, since each costs the same.
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words, *("\u0120" + word for word in words)]
    vocabulary = [(piece, -1.0) for piece in dict.fromkeys(pieces)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return ModelText(tokenizer, ChatRenderer({"default": TEMPLATE}, {}, Dialect.VLLM))
