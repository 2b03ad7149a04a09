"""Logits and tokens of transformers with the same weights; tests/engines/setup/record_embedded.py records them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from pointsman.edge.engines.embedded.seeded_weights import tiny_config, with_llama3_rope
from support.embedded_models import decoder, greedy, whole

RECORDED = msgspec.json.decode(Path(__file__).with_name("recorded.json").read_bytes())
CONFIGS = {
    **{family: tiny_config(RECORDED["vocabulary"], family) for family in ("llama", "qwen2", "qwen3")},
    "llama3 rope": with_llama3_rope(tiny_config(RECORDED["vocabulary"])),
}


@pytest.mark.parametrize("case", RECORDED["cases"])
def test_tokens_are_those_of_transformers(case: str) -> None:
    model = decoder(CONFIGS[case], RECORDED["seed"])
    for row in RECORDED["cases"][case]:
        length = row["prompt_tokens"]
        prompt = np.random.default_rng(length).integers(0, RECORDED["vocabulary"], length).tolist()
        logits, _, _ = whole(model, prompt)
        assert np.abs(logits[:16] - row["logits"]).max() < 1e-4
        assert greedy(model, prompt, len(row["answer"])) == row["answer"]


def test_all_recorded_answers_differ() -> None:
    answers = [tuple(row["answer"]) for rows in RECORDED["cases"].values() for row in rows]
    assert len(set(answers)) == len(answers) == 12
