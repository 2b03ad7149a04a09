"""TokenizerLookup: tokenizers from their places, one object for all who use the same files in the same way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.local_prompts import LocalPrompts, load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles, TokenizerPlaces, find_tokenizer

FAILURE_KEPT_S = 5.0
"""So long the next who asks for a place gets the answer that the last one got: models of one engine ask together."""


@dataclass(frozen=True, slots=True)
class FoundTokenizer:
    """Prompts and where their tokenizer came from."""

    prompts: LocalPrompts
    files: TokenizerFiles


class TokenizerLookup:
    """A tokenizer takes about 50 MB, so it is loaded once, and freed when the last model that uses it is forgotten."""

    def __init__(self, places: TokenizerPlaces, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._clock_s = clock_s
        self._loaded: WeakValueDictionary[tuple[Path, Dialect], LocalPrompts] = WeakValueDictionary()
        self._locks: WeakValueDictionary[str | tuple[Path, Dialect], asyncio.Lock] = WeakValueDictionary()
        self._failures: dict[str, tuple[float, str]] = {}

    async def find(self, place: str, dialect: Dialect) -> FoundTokenizer:
        """From a directory or `owner/name`. Raises TokenizerFilesError."""
        files = await self._files(place)
        key = (files.folder, dialect)
        async with self._lock(key):
            prompts = self._loaded.get(key)
            if prompts is None:
                prompts = await load_local_prompts(files, dialect=dialect)
                self._loaded[key] = prompts
        return FoundTokenizer(prompts, files)

    async def _files(self, place: str) -> TokenizerFiles:
        async with self._lock(place):
            at_s, message = self._failures.get(place, (0.0, ""))
            if message and self._clock_s() < at_s + FAILURE_KEPT_S:
                raise TokenizerFilesError(message)
            self._failures.pop(place, None)
            try:
                return await find_tokenizer(place, self._places)
            except TokenizerFilesError as error:
                self._failures[place] = (self._clock_s(), str(error))
                raise

    def _lock(self, key: str | tuple[Path, Dialect]) -> asyncio.Lock:
        """One a key, as long as somebody holds it or waits for it."""
        return self._locks.setdefault(key, asyncio.Lock())
