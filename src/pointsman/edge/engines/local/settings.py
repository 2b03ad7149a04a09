"""LocalEngineSettings: what one llama.cpp engine is started with."""

from __future__ import annotations

from pathlib import Path

import msgspec


class LocalEngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. Crosses a process border as JSON."""

    model_path: str
    model_name: str
    """Name that requests use."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free one."""
    context_tokens: int = 16_384
    """KV cache shared by all sequences; one sequence may use as much as the model was trained for."""
    slots: int = 4
    """Sequences that it computes at once; more wait."""
    threads: int = 1
    """Threads that compute."""
    prompt_cache_mib: int = 1024
    """Memory for the KV of prompts that left the slots, so that a conversation finds its cache again."""

    slot_save_path: str | None = None
    """Directory into which slots are saved for other engines that see it as well; None: nowhere."""

    @property
    def file(self) -> Path:
        """The model's file."""
        return Path(self.model_path)
