"""Timed completions: one streamed answer of an engine, with the moment at which each piece came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.http import connect_reason
from pointsman.edge.wire.masked import forms_of, masked
from pointsman.edge.wire.sse import StreamScanner

_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_STREAM = "text/event-stream"
_MOST_ERROR_BYTES = 500


@dataclass(frozen=True, slots=True)
class TimedCompletion:
    """One answer. Times in seconds of the monotonic clock; token counts as the engine reports them."""

    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


class CompletionClient:
    """Asks one engine. The session belongs to the caller.

    Answers have exactly the length asked for where the engine can be told so (`ignore_eos` of vLLM, SGLang and
    llama.cpp); one that refuses the field is asked without it.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.url = url
        self.model = model
        self._session = session
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._hidden = () if api_key is None else forms_of(api_key.encode())
        self._timeout_s = timeout_s
        self._path = _COMPLETIONS
        self._extra: dict[str, object] = {"ignore_eos": True}

    async def ask(
        self, prompt: str, output_tokens: int, on_first: Callable[[], None] = lambda: None
    ) -> TimedCompletion:
        """Stream one answer of so many tokens; `on_first` is called when its first one came.

        Raises EngineError when no answer came, or one without a token count.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(prompt, output_tokens, on_first)
        except TimeoutError:
            raise EngineError(f"{self.url} did not answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise EngineError(f"cannot connect to {self.url}: {connect_reason(error)}") from None
        except aiohttp.ClientError as error:
            raise EngineError(f"{self.url}: the answer broke off: {str(error) or type(error).__name__}") from None

    async def _ask(self, prompt: str, output_tokens: int, on_first: Callable[[], None]) -> TimedCompletion:
        while True:
            sent_s = time.perf_counter()
            async with self._session.post(
                self.url + self._path,
                data=msgspec.json.encode(self._body(prompt, output_tokens)),
                headers={**self._headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as answer:
                if answer.status == 200 and answer.content_type != _STREAM:
                    raise EngineError(
                        f"POST {self.url}{self._path} answered {answer.content_type} where a stream was asked for "
                        f"({_STREAM}): only engines that stream can be measured"
                    )
                if answer.status == 200:
                    return await self._read(answer, sent_s, on_first)
                text = masked(await answer.content.read(_MOST_ERROR_BYTES), self._hidden).decode("utf-8", "replace")
            if not self._simpler(answer.status):
                raise EngineError(f"POST {self.url}{self._path} answered {answer.status}: {text.strip()}")

    def _simpler(self, status: int) -> bool:
        """After a refusal: whether there is another way to ask."""
        if status in (404, 405) and self._path == _COMPLETIONS:
            self._path = _CHAT
            return True
        if status in (400, 422) and self._extra:
            self._extra = {}
            return True
        return False

    def _body(self, prompt: str, output_tokens: int) -> dict[str, object]:
        content: dict[str, object] = (
            {"prompt": prompt} if self._path == _COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
        )
        return {
            "model": self.model,
            **content,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }

    async def _read(
        self, answer: aiohttp.ClientResponse, sent_s: float, on_first: Callable[[], None]
    ) -> TimedCompletion:
        scanner = StreamScanner()
        first_s = last_s = 0.0
        # A chat begins with an event that names the role and holds no token.
        empty = 1 if self._path == _CHAT else 0
        async for data in answer.content.iter_any():
            now_s = time.perf_counter()
            before = scanner.events
            scanner.feed(data)
            if scanner.error:
                raise EngineError(f"{self.url} sent an error instead of an answer: {data[:_MOST_ERROR_BYTES]!r}")
            if scanner.events > max(empty, before):
                # The last event holds the usage alone; some engines send it together with the last token.
                if not first_s:
                    first_s = now_s
                    on_first()
                if scanner.usage is None or not last_s:
                    last_s = now_s
        scanner.flush()
        usage = scanner.usage
        if usage is None or not usage.prompt_tokens or not usage.completion_tokens or not first_s:
            raise EngineError(
                f"{self.url} did not say how many tokens it computed; it must be able to send usage in streams "
                "(stream_options.include_usage)"
            )
        return TimedCompletion(
            sent_s, first_s, last_s, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        )
