"""One small question to an engine while a stream moves there: JSON in, JSON out."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.edge.serving.breaks import fault_of, fault_of_status
from pointsman.edge.serving.engine_links import EngineLink
from pointsman.edge.wire.http1_client import Headers, UpstreamError, UpstreamPool, request_head

ANSWER_WITHIN_S = 10.0
_MOST_BYTES = 64 * 2**20

T = TypeVar("T")


class EngineAskError(PointsmanError):
    """An engine did not answer a question, or not as it should.

    Args:
        fault: of the worker, so that another one may be asked; None: another one would say the same.
    """

    def __init__(self, message: str, fault: Fault | None) -> None:
        super().__init__(message)
        self.fault = fault


class _Collected:
    """Sink of one whole answer."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left_bytes = _MOST_BYTES

    def on_head(self, status: int, headers: Headers) -> None:
        """Its status."""
        self.status = status

    def on_data(self, data: bytes) -> None:
        """A part of its body."""
        self._left_bytes -= len(data)
        if self._left_bytes > 0:
            self.parts.append(data)

    def on_end(self) -> None:
        """It is whole."""
        if not self.done.done():
            self.done.set_result(None)

    def on_error(self, error: UpstreamError) -> None:
        """It will not be whole."""
        if not self.done.done():
            self.done.set_exception(error)


async def ask_engine(pool: UpstreamPool, link: EngineLink, path: str, question: object, answer: type[T]) -> T:
    """POST it. Raises EngineAskError without such an answer, UpstreamConnectError without a connection."""
    body = msgspec.json.encode(question)
    fields = [(b"content-type", b"application/json")]
    if link.api_key is not None:
        fields.append((b"authorization", b"Bearer " + link.api_key.encode()))
    connection = await pool.connect(link.origin, fresh=True)
    sink = _Collected()
    connection.send(request_head(b"POST", path.encode(), link.origin, fields, len(body)), body, sink)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await sink.done
        if sink.status != 200:
            raise EngineAskError(f"{link.origin}{path} answered {sink.status}", fault_of_status(sink.status))
        return msgspec.json.decode(b"".join(sink.parts), type=answer)
    except TimeoutError:
        message = f"{link.origin}{path} did not answer within {ANSWER_WITHIN_S:g} s"
        raise EngineAskError(message, Fault.LATE) from None
    except UpstreamError as error:
        raise EngineAskError(f"{link.origin}{path}: {error}", fault_of(error)) from None
    except msgspec.MsgspecError as error:
        raise EngineAskError(f"{link.origin}{path}: {error}", None) from None
    finally:
        connection.abort()
