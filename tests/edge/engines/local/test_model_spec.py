"""What `--model` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL, SMOLLM2, ModelSpec


def test_forms() -> None:
    assert ModelSpec.parse("SmolLM2-135M-Instruct") == DEFAULT_MODEL
    assert ModelSpec.parse("/m/a.gguf") == ModelSpec(None, Path("/m/a.gguf"))
    assert ModelSpec.parse("small=/m/a=b.gguf") == ModelSpec("small", Path("/m/a=b.gguf"))
    assert ModelSpec.parse("~/a.gguf").path == Path.home() / "a.gguf"


@pytest.mark.parametrize("text", ["", "  ", "=/m/a.gguf", "name=", " =x"])
def test_empty_parts_are_refused(text: str) -> None:
    with pytest.raises(ModelFileError, match="--model"):
        ModelSpec.parse(text)


def test_the_default_is_known_by_size_and_checksum() -> None:
    assert SMOLLM2.size_bytes == 98_362_432
    assert len(SMOLLM2.sha256) == 64
