from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.gguf_file import GgufFile
from pointsman.edge.engines.embedded.model_config import Llama3Scaling, config_of_hub
from pointsman.edge.engines.embedded.rope import frequencies
from pointsman.edge.engines.embedded.safetensors_file import SafetensorsFile, SafetensorsFolder
from pointsman.edge.engines.embedded.seeded_weights import seeded, tiny_config
from pointsman.edge.engines.embedded.weights import load_weights

HUB = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "eos_token_id": [1, 2],
}


def hub_config(**changes: object) -> bytes:
    return json.dumps(HUB | changes).encode()


def test_files_written_by_the_library_are_read(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, -2.25], np.float16),
        "c": np.array([0.1], np.float64),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    folder = SafetensorsFolder(tmp_path)
    for name, values in tensors.items():
        assert folder.read(name).dtype == np.float32
        assert np.array_equal(folder.read(name), values.astype(np.float32))
    with pytest.raises(KeyError):
        folder.read("d")


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<3H", 0x3F80, 0xC000, 0x3DCC))
    assert SafetensorsFile(path).read("w").tolist() == [1.0, -2.0, 0.099609375]


def test_several_files_by_their_index(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(2, np.float32)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = SafetensorsFolder(tmp_path)
    assert folder.read("a").tolist() == [1, 1]
    assert folder.read("b").tolist() == [0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no safetensors file"),
        (struct.pack("<Q", 2**60), "is no safetensors file"),
        (struct.pack("<Q", 3) + b"abc1", "broken header"),
        (struct.pack("<Q", 55) + b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}} 1', "not loaded wholly"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        SafetensorsFolder(tmp_path)


def test_a_folder_without_weights_and_a_type_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="has neither"):
        SafetensorsFolder(tmp_path)
    save_file({"w": np.ones(2, np.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="tensor w is I8"):
        SafetensorsFolder(tmp_path).read("w")


def test_a_missing_tensor_and_a_wrong_shape_are_named() -> None:
    config = tiny_config(100)
    read = seeded(config, 0)

    def without(name: str):
        if name == "model.layers.1.mlp.down_proj.weight":
            raise KeyError(name)
        return read(name)

    with pytest.raises(ModelFileError, match=r"m: tensor model.layers.1.mlp.down_proj.weight is missing"):
        load_weights(config, without, "m")
    with pytest.raises(ModelFileError, match=r"m: tensor model.norm.weight has shape \[63\], expected \[64\]"):
        load_weights(config, lambda name: read(name)[:63] if name == "model.norm.weight" else read(name), "m")


def test_a_configuration_of_the_hub() -> None:
    config = config_of_hub(hub_config(), "config.json")
    assert (config.heads, config.kv_heads, config.head_dim, config.group) == (4, 2, 8, 2)
    assert config.eos_ids == (1, 2)
    assert config.tied
    assert not config.qkv_bias
    newer = config_of_hub(
        hub_config(
            model_type="qwen3",
            head_dim=16,
            rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0},
        ),
        "config.json",
    )
    assert newer.qk_norm
    assert newer.head_dim == 16
    assert newer.rope_theta == 5e5
    assert newer.rope_llama3 is not None
    assert newer.rope_llama3.factor == 8.0
    assert config_of_hub(hub_config(rope_scaling={"type": "linear", "factor": 4.0}), "x").rope_factor == 4.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known; there are llama, qwen2, qwen3"),
        ({"model_type": "gpt2", "hidden_size": None}, "model_type 'gpt2' is not known"),
        ({"hidden_size": "x"}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, not 0"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling: 'yarn' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
        ({"num_key_value_heads": 3}, "4 heads can't share 3 KV heads evenly"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        config_of_hub(hub_config(**changes), "config.json")


def write_gguf(
    path: Path,
    said: Mapping[str, str | float] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    without: tuple[str, ...] = (),
) -> list[str]:
    """Written by the format's own library, with rotary pairs side by side as its converters leave them: its tensors."""
    gguf = pytest.importorskip("gguf")
    config, read = tiny_config(100), seeded(tiny_config(100), 3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.feed_forward)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_context_length(config.positions)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_eos_token_id(2)
    for key, value in (said or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)

    def side_by_side(values: np.ndarray, heads: int) -> np.ndarray:
        rows, columns = values.shape
        return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)

    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for layer in range(config.layers):
        names |= {f"model.layers.{layer}.{k}.weight": f"blk.{layer}.{v}.weight" for k, v in parts.items()}
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    for ours, theirs in names.items():
        if theirs in without:
            continue
        values = read(ours)
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(theirs.split(".")[-2])
        writer.add_tensor(theirs, values if heads is None else np.ascontiguousarray(side_by_side(values, heads)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return list(names)


def test_gguf_files_hold_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    names = write_gguf(path)
    read = seeded(tiny_config(100), 3)
    file = GgufFile(path)
    assert (file.config.layers, file.config.heads, file.config.kv_heads, file.config.vocabulary) == (2, 4, 2, 100)
    assert file.config.tied
    assert file.config.eos_ids == (2,)
    for name in names:
        assert np.array_equal(file.read(name), read(name)), name
    with pytest.raises(KeyError):
        file.read("lm_head.weight")


def test_a_gguf_file_of_llama_3_turns_positions_as_its_directory_does(tmp_path: Path) -> None:
    """Its converter writes how frequencies are divided, not by which rule."""
    scaled = replace(tiny_config(100), rope_llama3=Llama3Scaling(8.0, 1.0, 4.0, 64))
    plain = frequencies(tiny_config(100))
    path = tmp_path / "tiny.gguf"
    write_gguf(path, more={"rope_freqs.weight": plain / frequencies(scaled)})
    assert not np.allclose(plain, frequencies(scaled), rtol=0.5)
    assert np.allclose(frequencies(GgufFile(path).config), frequencies(scaled), rtol=1e-6)


def test_linear_scaling_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert GgufFile(path).config.rope_factor == 4.0


@pytest.mark.parametrize(
    ("said", "more", "without", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, {}, (), "rope.scaling.type: 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8.0}, {}, (), "rope.dimension_count is 8"),
        ({}, {"rope_freqs.weight": np.ones(5, np.float32)}, (), "rope_divisors: expected 8 numbers"),
        ({}, {}, ("token_embd.weight",), "token_embd.weight is missing: the file holds no whole model"),
    ],
)
def test_what_of_a_gguf_file_is_not_supported_is_refused(
    tmp_path: Path, said: dict[str, str | float], more: dict[str, np.ndarray], without: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, said, more, without)
    with pytest.raises(ModelFileError, match=message):
        GgufFile(path)


def test_what_is_no_gguf_file_is_said(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(ModelFileError, match="can't be read as a GGUF file"):
        GgufFile(path)
