"""Tensors out of safetensors files, as float32.

The format is eight bytes of length, a JSON header and raw numbers. It is read here and not by the library of that name,
since that has no numpy form of bfloat16, in which nearly all models are kept.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.weights import Array

_MOST_HEADER_BYTES = 100 * 2**20
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class _Place(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsFile:
    """One file, mapped into memory: only what is asked for is read. Raises ModelFileError for one that is broken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                start = file.read(8)
                length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MOST_HEADER_BYTES + 1
                if length > _MOST_HEADER_BYTES:
                    raise ModelFileError(f"{path}: is no safetensors file")
                header = file.read(length)
            self._data = np.memmap(path, np.uint8, "r", offset=8 + length)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: can't be read: {error}") from None
        self._places = self._read_header(header)

    @property
    def names(self) -> frozenset[str]:
        """Of its tensors."""
        return frozenset(self._places)

    def read(self, name: str) -> Array:
        """One tensor. Raises KeyError for an unknown name, ModelFileError for a type that can't be used."""
        place = self._places[name]
        first, last = place.data_offsets
        raw = self._data[first:last]
        try:
            if place.dtype == "BF16":
                # The upper half of a float32.
                wide = raw.view("<u2").astype(np.uint32) << 16
                return wide.view(np.float32).reshape(place.shape)
            kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
            if place.dtype not in kinds:
                raise ModelFileError(
                    f"{self._path}: tensor {name} is {place.dtype}; there are BF16, {', '.join(kinds)}"
                )
            return raw.view(kinds[place.dtype]).astype(np.float32).reshape(place.shape)
        except ValueError as error:
            raise ModelFileError(f"{self._path}: tensor {name}: {error}") from None

    def _read_header(self, header: bytes) -> dict[str, _Place]:
        try:
            said: dict[str, Any] = msgspec.json.decode(header)
            said.pop("__metadata__", None)
            places = {name: msgspec.convert(place, _Place) for name, place in said.items()}
        except (msgspec.MsgspecError, AttributeError) as error:
            raise ModelFileError(f"{self._path}: broken header: {error}") from None
        for name, place in places.items():
            first, last = place.data_offsets
            if not 0 <= first <= last <= len(self._data):
                raise ModelFileError(f"{self._path}: tensor {name} lies outside of the file: it was not loaded wholly")
        return places


class SafetensorsFolder:
    """All tensors of a model's directory, in one file or several."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFileError where there are none, or an index names files that are missing."""
        if (folder / SINGLE).exists():
            file = SafetensorsFile(folder / SINGLE)
            self._files = dict.fromkeys(file.names, file)
            return
        index = folder / INDEX
        if not index.exists():
            raise ModelFileError(f"{folder}: has neither {SINGLE} nor {INDEX}; other weight files are not supported")
        try:
            names = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except msgspec.MsgspecError as error:
            raise ModelFileError(f"{index}: {error}") from None
        files = {name: SafetensorsFile(folder / name) for name in dict.fromkeys(names.values())}
        self._files = {name: files[file] for name, file in names.items()}

    def read(self, name: str) -> Array:
        """One tensor; raises as SafetensorsFile does."""
        return self._files[name].read(name)
