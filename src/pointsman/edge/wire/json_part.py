"""Where a part of a JSON text stands in it, when msgspec has handed the part out as `Raw`."""

from __future__ import annotations

import msgspec
import numpy as np


def part_start(text: bytes, part: msgspec.Raw) -> int:
    """Offset of `part` in the bytes that it was decoded from.

    A decoded `Raw` is a view into those bytes, so its address tells where it stands: nothing is searched, whatever its
    size, and a second occurrence of the same bytes can't be taken for it. Raises ValueError for a part of another text.
    """
    start = _address(part) - _address(text)
    if not 0 <= start <= len(text) - len(memoryview(part)):
        raise ValueError("this is no part of the text; give the bytes that it was decoded from")
    return start


def _address(data: bytes | msgspec.Raw) -> int:
    view = np.frombuffer(data, np.uint8)
    address: int = view.__array_interface__["data"][0]
    return address
