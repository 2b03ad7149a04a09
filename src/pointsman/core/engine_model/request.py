"""What an engine is asked for: a prompt in tokens, or only how long everything is and which blocks are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.core.model.stage import Stage


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request: a prompt and how much to generate."""

    id: str
    prompt: Sequence[int]
    """Token ids, at least one."""
    max_tokens: int
    """Exactly that many are generated for each sequence, unless the context ends first."""
    sequences: int = 1
    """Answers (`n`); they share the prompt's blocks."""
    lora_name: str | None = None
    cache_salt: str | None = None
    stage: Stage = Stage.WHOLE
    """PREFILL: its blocks are held once it has all its tokens. DECODE: it waits for KV (`EngineModel.fetched`)."""


@dataclass(frozen=True, slots=True)
class LengthRequest:
    """One request without contents: lengths, and hashes of blocks where it is known which are the same."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """Of the whole answer, at all stages together."""
    block_hashes: tuple[int, ...] = ()
    """Chained hashes of the prompt's full blocks, from the first one on; what comes after them is never shared."""
    answer_hashes: tuple[int, ...] = ()
    """Chained hashes of the blocks that the prompt does not fill, but prompt and answer do. They need hashes of all
    full blocks of the prompt before them."""
    stage: Stage = Stage.WHOLE
    fetches: bool = False
    """It waits for the KV of its beginning (`EngineModel.fetched`), whatever its stage, and computes the rest."""
