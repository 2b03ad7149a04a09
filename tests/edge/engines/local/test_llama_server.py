"""Why llama.cpp can't start, said before it is asked; and what it is told."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pointsman.core.model.errors import EngineError, ModelFileError
from pointsman.edge.engines.local import llama_server
from pointsman.edge.engines.local.settings import LocalEngineSettings


@pytest.fixture
def settings(tmp_path: Path) -> LocalEngineSettings:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    return LocalEngineSettings(model_path=str(file), model_name="m", port=0, threads=3, slots=2)


def never(url: str) -> None:
    raise AssertionError(f"ready at {url}")


def test_not_installed(settings: LocalEngineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=r"pip install 'pointsman\[local\]'"):
        llama_server.serve(settings, never)


def test_no_model(settings: LocalEngineSettings) -> None:
    settings.file.write_bytes(b"text")
    with pytest.raises(ModelFileError, match="is no GGUF file"):
        llama_server.serve(settings, never)


def test_taken_port(settings: LocalEngineSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = LocalEngineSettings(model_path=settings.model_path, model_name="m", port=port)
        with pytest.raises(EngineError, match=f"can't listen on 127.0.0.1:{port}: Address already in use"):
            llama_server.serve(used, never)


class FakeLlama:
    """The part of xllamacpp that is used; its server never starts."""

    def __init__(self) -> None:
        self.parameters = SimpleNamespace(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
        )

    def CommonParams(self) -> SimpleNamespace:  # noqa: N802
        return self.parameters

    def Server(self, parameters: SimpleNamespace) -> None:  # noqa: N802
        raise RuntimeError("Failed to init server.")


def test_what_it_is_told_and_its_refusal(settings: LocalEngineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLlama()
    monkeypatch.setitem(sys.modules, "xllamacpp", fake)
    monkeypatch.setattr(llama_server, "_STOP", ())
    with pytest.raises(EngineError, match=r"could not start with .*m\.gguf: Failed to init server\. Its log says why"):
        llama_server.serve(settings, never)
    told = fake.parameters
    assert told.model_alias == {"m"}
    assert (told.n_parallel, told.cpuparams.n_threads, told.cpuparams_batch.n_threads) == (2, 3, 3)
    assert told.kv_unified
    assert told.endpoint_metrics
    assert told.hostnames == ["127.0.0.1"]
