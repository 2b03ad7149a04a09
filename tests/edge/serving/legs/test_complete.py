"""A prefill leg that had all there was to say: its answer is the client's, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.serving.tenants.usage import delivered_tokens
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from support.virtual.apart import apart
from support.virtual.loop import VirtualLoop, run_virtual

JSON = ((b"content-type", b"application/json"), (b"content-length", b"999"))


def said(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "sim",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop",
                "disaggregated_params": {"ctx_request_id": 2**60 + 1, "disagg_request_id": 2**60 + 1},
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
        "prompt_token_ids": [1, 2, 3],
    }


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("streamed", [True, False])
def test_its_answer_comes_as_it_was_asked_for(streamed: bool, usage: bool) -> None:
    message = {"role": "assistant", "content": "yes"}

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1, kv=KvShape(HandShake.TRTLLM)) as fleet:
            steps = fleet.engines[1].kv.engine.counters.steps
            exchanges = []

            async def chat(request: IncomingRequest, responder: Responder) -> None:
                exchanges.extend(fleet.frontends[0].dispatcher._running.values())
                assert json.loads(request.body)["disaggregated_params"]["request_type"] == "context_only"
                responder.send(200, JSON[:1], json.dumps(said(message)).encode())

            assert fleet.engines[0].server is not None
            fleet.engines[0].server._routes["POST", "/v1/chat/completions"] = chat
            options = {"stream_options": {"include_usage": usage} if streamed else None}
            answer, task, _ = fleet.chat(stream=streamed, **options)
            await task
            assert answer.header(b"x-pointsman-worker") == answer.header(b"x-pointsman-prefill-worker") == b"e0/0"
            assert b"disaggregated_params" not in answer.body
            assert b"prompt_token_ids" not in answer.body
            if streamed:
                assert answer.whole
                assert (answer.text, answer.finish_reasons) == ("yes", ["stop"])
                assert (answer.usage is not None) is usage
            else:
                assert json.loads(answer.body)["choices"][0]["message"] == message
            frontend = fleet.frontends[0]
            assert frontend.ledger.snapshot().totals.output_tokens == 1
            assert [(one.sent, delivered_tokens(one)) for one in exchanges] == [(True, 8)], "its tenant is charged"
            assert dict(frontend.traffic.transfers) == {("apart", "answered"): 1}
            assert fleet.engines[1].kv.engine.counters.steps == steps
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(main)
