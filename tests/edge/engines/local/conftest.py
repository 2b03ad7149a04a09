"""A small known model, places in a temporary directory, and engines that start in a moment."""

from __future__ import annotations

import hashlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pointsman.edge.engines.local.model_file import ModelPlaces
from pointsman.edge.engines.local.model_spec import KnownModel, ModelSpec
from pointsman.edge.engines.local.settings import LocalEngineSettings

CONTENT = b"GGUF" + bytes(range(256)) * 4096


@pytest.fixture
def content() -> bytes:
    return CONTENT


@pytest.fixture
def known() -> KnownModel:
    return KnownModel(
        name="tiny",
        file="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        hub_repository="owner/tiny-GGUF",
        package="tiny-package",
    )


@pytest.fixture
def spec(known: KnownModel) -> ModelSpec:
    return ModelSpec(None, None, known)


@pytest.fixture
def places(tmp_path: Path) -> ModelPlaces:
    """Nothing is there, and nothing outside is asked."""
    return ModelPlaces(tmp_path / "store", (tmp_path / "hub",), hub_url=None, use_package=False)


SCRIPT = textwrap.dedent(
    """
    import json, os, signal, socket, sys
    behaviour, settings = sys.argv[1], json.loads(sys.argv[2])
    if behaviour == "broken":
        sys.exit("the model is too heavy")
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour != "slow":
        listener = socket.create_server(("127.0.0.1", settings["port"]))
        print("some other line")
        print(f"ready http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    signal.pause()
    """
)


@pytest.fixture
def fake_engine() -> Callable[[str], Callable[[LocalEngineSettings], Sequence[str]]]:
    """A command of an engine that behaves as named: good, slow (never ready), broken, stubborn (ignores SIGTERM)."""

    def command_of(behaviour: str) -> Callable[[LocalEngineSettings], Sequence[str]]:
        def command(settings: LocalEngineSettings) -> Sequence[str]:
            encoded = f'{{"port": {settings.port}}}'
            return [sys.executable, "-c", SCRIPT, behaviour, encoded]

        return command

    return command_of
