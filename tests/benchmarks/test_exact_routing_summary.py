"""What the benchmark of exact routing makes of its turns, and how it makes a model for vLLM."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from exact_routing import markdown, summarise
from harness import gguf_model
from harness.chats import Turn

TURN = Turn(
    session=0,
    turn=0,
    repeated=False,
    prompt_tokens=100,
    cached_tokens=0,
    completion_tokens=12,
    new_share=1.0,
    ttft_s=0.4,
    worker="",
)


def turn(**fields: object) -> Turn:
    return msgspec.structs.replace(TURN, **fields)


def test_turns_after_the_first_are_told_apart():
    arm = summarise([TURN, turn(turn=1, prompt_tokens=200, cached_tokens=150, ttft_s=0.1)])
    assert (arm.requests, arm.prompt_tokens) == (2, 300)
    assert (arm.cached_share, arm.later_cached_share) == (0.5, 0.75)
    assert (arm.ttft_mean_ms, arm.later_ttft_mean_ms) == (pytest.approx(250.0), pytest.approx(100.0))


def test_the_table_compares_with_round_robin():
    later = turn(turn=1, cached_tokens=50, ttft_s=0.2)
    turns = {"pointsman round_robin": [[TURN, turn(turn=1)]], "pointsman auto": [[TURN, later]]}
    text = markdown({"foreign_cores": 0.0, "turns": turns})
    assert "| pointsman auto | 2 | 25.0% | 300 |" in text
    assert "pointsman round_robin 1.00, pointsman auto 0.75." in text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.7.attn_q.weight", "model.layers.7.self_attn.q_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
    ],
)
def test_weights_get_the_names_that_vllm_reads(name, wanted):
    assert gguf_model.weight_name(name) == wanted


def test_rotary_pairs_go_half_a_head_apart():
    """Two heads of four rows: pairs (0, 1), (2, 3) become rows 0, 2 and 1, 3 of a head."""
    rows = np.arange(8).reshape(8, 1)
    assert gguf_model.halves(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_config_is_complete_enough_to_compute_with():
    sizes = ("vocab_size", "embedding_length", "feed_forward_length", "block_count", "context_length")
    meta = {f"llama.{name}": 8 for name in (*sizes, "attention.head_count", "attention.head_count_kv")}
    meta |= {"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e5}
    meta |= {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
    made = gguf_model.config(meta, tied=True)
    assert (made["rope_theta"], made["rms_norm_eps"], made["tie_word_embeddings"]) == (1e5, 1e-5, True)
