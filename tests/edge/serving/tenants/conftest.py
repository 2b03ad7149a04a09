from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.scripted_fleet import Fleet

KEYS = {"a1": ("acme", "key-of-acme-one"), "a2": ("acme", "key-of-acme-two"), "b1": ("blue", "key-of-blue")}


def keys_text(extra: str = "", **keys: tuple[str, str]) -> str:
    """A file of keys, by id: tenant and key."""
    lines = [
        f"- {{id: {name}, tenant: {tenant}, sha256: {hashlib.sha256(key.encode()).hexdigest()}}}"
        for name, (tenant, key) in (keys or KEYS).items()
    ]
    return "keys:\n" + "\n".join(lines) + f"\n{extra}"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(keys_text())
    return path


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """A front end over engines that do what a test says."""
    async with AsyncExitStack() as stack:
        yield Fleet(stack)
