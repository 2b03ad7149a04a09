"""Small fleets and requests for tests of the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.ledger.events import HealthRead, WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import BlockKeys, salt_seed, text_block_keys
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerSpec, worker_id

MakeRequest = Callable[..., Request]
MakeLedger = Callable[..., Ledger]


@pytest.fixture
def make_request() -> MakeRequest:
    """`make_request("r1", text=b"…", model="m", **fields)`."""

    def make(request_id: str = "r", text: bytes = b"", model: str = "m", **fields: object) -> Request:
        keys: BlockKeys = text_block_keys(text, 16, salt_seed(model.encode()))
        defaults: dict[str, object] = {"arrival_ms": 0.0, "prompt_tokens": len(text) // 4, "blocks": keys}
        return Request(id=request_id, model=model, **(defaults | fields))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_ledger() -> MakeLedger:
    """`make_ledger("a", "b", kv_capacity_tokens=…)`: engines by name, ready, serving model `m`."""

    def make(*engines: str, ready: bool = True, prefix_ttl_ms: float = 60_000.0, **fields: object) -> Ledger:
        ledger = Ledger(text_block_bytes=16, prefix_ttl_ms=prefix_ttl_ms)
        for name in engines:
            defaults: dict[str, object] = {"url": f"http://{name}", "kind": "vllm", "models": ("m",)}
            spec = WorkerSpec(id=worker_id(name), **(defaults | fields))  # type: ignore[arg-type]
            ledger.apply(WorkerJoined(spec, 0.0))
            if ready:
                ledger.apply(HealthRead(spec.id, 0.0, True, True, "answers"))
        return ledger

    return make
