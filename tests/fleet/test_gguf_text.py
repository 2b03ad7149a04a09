"""The embedded engine cuts text into the tokens that llama.cpp makes of it, from the same file."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from pointsman.edge.engines.embedded.gguf_file import GgufFile
from pointsman.edge.engines.embedded.gguf_text import gguf_text

pytestmark = pytest.mark.local
TEXTS = (
    "Hello world, the year is 2026.",
    "  two spaces, a tab\tand a trail  ",
    "one\ntwo\n\n\nfive\r\n",
    "it's, I'LL, don't, We'Ve",
    "a1b2c34 ½ ² ⅷ १२३",
    "été naïve 😀 中文字符 \u00a0\u2003x",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return {'a': x ** 2}  # squared",
)


def test_the_tokens_of_a_gguf_file_are_llama_cpps(up_fleet, model_path: Path) -> None:
    file = GgufFile(model_path)
    text = gguf_text(file.metadata, file.config.vocabulary, str(model_path))
    worker = up_fleet.status()["workers"][0]["id"]
    for asked in TEXTS:
        body = json.dumps({"content": asked, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{up_fleet.engine_url(worker)}/tokenize", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert text.encode(asked) == json.loads(answer.read())["tokens"], asked
