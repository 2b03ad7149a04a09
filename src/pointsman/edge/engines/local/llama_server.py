"""llama.cpp's own server inside this process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.local.gguf import check_gguf
from pointsman.edge.engines.local.saved_slots import SavedSlots
from pointsman.edge.engines.local.settings import LocalEngineSettings
from pointsman.edge.wire.listening import refuse_taken

_STOP = (signal.SIGTERM, signal.SIGINT)
_HTTP_THREADS = 256
"""A request keeps a thread from start to end, waiting ones too: with few, a busy engine can't say that it lives."""


_LOG_WARNINGS = 2
"""Requests leave no line: a log that nobody rotates must not grow with the traffic."""


def serve(settings: LocalEngineSettings, on_ready: Callable[[str], None]) -> None:
    """Load the model, call `on_ready(url)` and serve until SIGTERM or SIGINT. Call it in the main thread.

    Raises EngineError when the engine can't start. A signal during loading ends the process at once.
    """
    with llama_running(settings) as url, _stop_signals() as stop:
        on_ready(url)
        stop.recv(1)


@contextmanager
def llama_running(settings: LocalEngineSettings) -> Iterator[str]:
    """Load the model and serve as long as the context lasts; its URL. Enter it in the main thread.

    Raises EngineError when the engine can't start. A signal during loading ends the process at once.
    """
    llama = _import_llama()
    check_gguf(settings.file)
    slots = nullcontext() if settings.slot_save_path is None else SavedSlots(Path(settings.slot_save_path))
    refuse_taken(settings.host, settings.port, "--port")  # llama.cpp only says that it could not start
    for number in _STOP:
        signal.signal(number, signal.SIG_DFL)
    try:
        server = llama.Server(_parameters(llama, settings))
    except RuntimeError as error:
        raise EngineError(f"llama.cpp could not start with {settings.model_path}: {error} Its log says why.") from error
    with slots:
        yield server.listening_address
    del server  # ends its threads


@contextmanager
def _stop_signals() -> Iterator[socket.socket]:
    """A socket that can be read once a stop signal came; any of llama.cpp's threads may be the one that gets it."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        for number in _STOP:
            signal.signal(number, lambda number, frame: None)
        yield receiver
        signal.set_wakeup_fd(-1)


def _import_llama() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise EngineError(f"llama.cpp is not installed: pip install 'pointsman[local]' ({error})") from error
    return xllamacpp


def _parameters(llama: Any, settings: LocalEngineSettings) -> Any:
    parameters = llama.CommonParams()
    parameters.model.path = settings.model_path
    parameters.model_alias = {settings.model_name}
    parameters.hostnames = [settings.host]
    parameters.port = settings.port
    parameters.n_ctx = settings.context_tokens
    parameters.n_parallel = settings.slots
    parameters.kv_unified = True
    parameters.cont_batching = True
    parameters.cache_prompt = True
    parameters.cache_ram_mib = settings.prompt_cache_mib
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams_batch.n_threads = settings.threads
    parameters.n_threads_http = _HTTP_THREADS
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.ui = False
    if settings.slot_save_path is not None:
        # File names are put behind it as they are.
        parameters.slot_save_path = os.path.join(settings.slot_save_path, "")
    parameters.verbosity = _LOG_WARNINGS
    return parameters
