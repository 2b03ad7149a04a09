"""The encoder: what is done at once, what in a thread, its bounds, and what is said where there are no tokens."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import EncoderSettings, NoPrompts, NotEncoded, Pending, PromptEncoder
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.errors import NotTokenizable, Reason
from pointsman.edge.prompts.local_prompts import EncodedPrompt, LocalPrompts
from pointsman.edge.prompts.worker_pool import WorkerPool
from pointsman.edge.wire.errors import BadRequest
from pointsman.edge.wire.openai import ChatRequest, CompletionRequest, parse_chat, parse_completion

Load = Callable[..., Awaitable[LocalPrompts]]
NAMES = st.sampled_from(["type", "text", "function", "name", "arguments", "id", "content", "image_url", "parameters"])
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "x"])},
    optional={"text": st.text(max_size=3) | st.integers()},
)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
EVERYTHING = (
    "{% for m in messages %}{{ m.role }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ m.tool_calls | tojson }}"
    "{{ m.name }}{% endfor %}{{ tools | tojson }}{{ documents | tojson }}{{ reasoning_effort }}"
)
SETTINGS = EncoderSettings(inline_characters=200, inline_bytes=2000, max_bytes=20_000, inline_steps=500, limit_s=30)


@pytest.fixture
async def encoder() -> AsyncIterator[PromptEncoder]:
    made = PromptEncoder(SETTINGS)
    yield made
    made.close()


@pytest.fixture
async def any_body_encoder(load: Load) -> AsyncIterator[PromptEncoder]:
    """With bounds that no test reaches."""
    made = PromptEncoder()
    for dialect in Dialect:
        made.register(dialect, await load(EVERYTHING, dialect))
    yield made
    made.close()


def chat(content: object = "Where does it go?", **body: object) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **body}).encode())


def completion(prompt: object, **body: object) -> CompletionRequest:
    return parse_completion(json.dumps({"model": "m", "prompt": prompt, **body}).encode())


async def test_short_prompts_are_done_at_once(encoder: PromptEncoder, load: Load) -> None:
    encoder.register("m", await load())

    found = encoder.encode_now("m", chat())

    assert isinstance(found, EncodedPrompt)
    assert encoder.counts.inline == 1


@pytest.mark.parametrize("words", [100, 1000], ids=["much to tokenize", "much to render"])
async def test_long_prompts_go_to_a_thread(encoder: PromptEncoder, load: Load, words: int) -> None:
    prompts = await load()
    encoder.register("m", prompts)
    body = chat("why " * words)

    found = encoder.encode_now("m", body)

    assert isinstance(found, Pending)
    outcome = await found.outcome()
    assert isinstance(outcome, EncodedPrompt)
    assert outcome == await encoder.encode("m", body)
    assert encoder.counts.pooled >= 1


async def test_a_long_history_that_was_seen_is_done_at_once(encoder: PromptEncoder, load: Load) -> None:
    encoder.register("m", await load())
    body = chat("why " * 100)
    await encoder.encode("m", body)

    assert isinstance(encoder.encode_now("m", body), EncodedPrompt)


async def test_a_template_with_many_steps_goes_to_a_thread(encoder: PromptEncoder, load: Load) -> None:
    encoder.register("m", await load("{% for i in range(600) %}{% endfor %}ok"))

    found = encoder.encode_now("m", chat())

    assert isinstance(found, Pending)
    assert isinstance(await found.outcome(), EncodedPrompt)


async def test_a_template_that_does_not_end_is_given_up(load: Load) -> None:
    encoder = PromptEncoder(EncoderSettings(inline_steps=500, max_steps=5000))
    encoder.register("m", await load("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"))

    outcome = await encoder.encode("m", chat())

    assert isinstance(outcome, NotEncoded)
    assert outcome.reason is Reason.TIMED_OUT
    encoder.close()


async def test_models_without_a_tokenizer(encoder: PromptEncoder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pointsman.prompts"):
        encoder.register("m", NoPrompts("owner/m: not in a hub cache"))
        outcome = encoder.encode_now("m", chat())

    assert outcome == NotEncoded(Reason.NO_TOKENIZER, "owner/m: not in a hub cache")
    assert "text blocks are used: owner/m: not in a hub cache" in caplog.text
    assert encoder.encode_now("other", chat()) == NotEncoded(Reason.NO_TOKENIZER, "the model has no tokenizer")
    encoder.forget("m")
    assert encoder.source("m") is None


async def test_each_reason_is_a_warning_once(
    encoder: PromptEncoder, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    encoder.register("m", await load())

    with caplog.at_level(logging.WARNING, "pointsman.prompts"):
        for _ in range(3):
            encoder.encode_now("m", chat(chat_template="x"))

    assert encoder.counts.failed == {Reason.OWN_TEMPLATE: 3}
    assert caplog.text.count("own_template") == 1


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "canary"}]}]},
        {"messages": [{"role": "canary", "content": "canary"}]},
        {"chat_template_kwargs": {"canary": 1, "messages": 2}},
    ],
)
async def test_what_a_client_wrote_is_in_no_log(
    encoder: PromptEncoder, load: Load, caplog: pytest.LogCaptureFixture, body: dict[str, object]
) -> None:
    encoder.register("m", await load("{{ raise_exception(messages[0].role ~ messages[0].content) }}"))
    with caplog.at_level(logging.DEBUG, "pointsman"):
        for _ in range(2):
            await encoder.encode("m", chat(**body))
    assert caplog.text.count("text blocks are used") == 2
    assert "canary" not in caplog.text


@pytest.mark.parametrize("words", [1, 1000], ids=["at once", "in a thread"])
async def test_a_fault_does_not_cost_a_request(
    encoder: PromptEncoder,
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    words: int,
) -> None:
    encoder.register("m", await load())
    monkeypatch.setattr(LocalPrompts, "prepare", lambda *given: 1 / 0)

    outcome = await encoder.encode("m", chat("why " * words))

    assert isinstance(outcome, NotEncoded)
    assert outcome.reason is Reason.FAULT
    assert "ZeroDivisionError" in caplog.text


async def test_a_huge_prompt_is_not_tokenized(encoder: PromptEncoder, load: Load) -> None:
    encoder.register("m", await load())

    outcome = encoder.encode_now("m", completion("x" * 30_000))

    assert isinstance(outcome, NotEncoded)
    assert outcome.reason is Reason.TOO_LARGE


async def test_images_count_as_partial(encoder: PromptEncoder, load: Load) -> None:
    encoder.register("m", await load())

    outcome = encoder.encode_now("m", chat([{"type": "image_url", "image_url": {"url": "data:"}}]))

    assert isinstance(outcome, EncodedPrompt)
    assert (outcome.complete, encoder.counts.partial) == (False, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"])},
    optional={
        "content": st.text(max_size=5) | st.lists(PART | JSON, max_size=3) | st.none(),
        "tool_calls": JSON | st.lists(st.just(CALL), max_size=2),
        "name": JSON,
        "tools": JSON,
    },
)
OPTIONAL = dict.fromkeys(("tools", "tool_choice", "documents", "reasoning_effort", "chat_template_kwargs"), JSON)
FLAGS = {name: JSON | st.booleans() for name in ("add_generation_prompt", "continue_final_message", "chat_template")}
BODY = st.fixed_dictionaries({"messages": st.lists(MESSAGE, min_size=1, max_size=4)}, optional=OPTIONAL | FLAGS)


@given(body=BODY)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_body_makes_it_raise(any_body_encoder: PromptEncoder, body: dict[str, object]) -> None:
    raw = json.dumps({"model": "m", **body}).encode()
    try:
        parsed = parse_chat(raw)
    except BadRequest:
        return

    for model in ("vllm", "sglang"):
        assert isinstance(any_body_encoder.encode_now(model, parsed), EncodedPrompt | NotEncoded)


class Engine:
    """Stands for an engine's `/tokenize`."""

    def __init__(self, tokens: Sequence[int] | None = (1, 2), error: Exception | None = None, hangs: bool = False):
        self.tokens, self.error, self.hangs = tokens, error, hangs
        self.asked: list[object] = []

    async def __call__(self, prompt: object) -> Sequence[int] | None:
        self.asked.append(prompt)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.tokens


async def test_an_engine_is_asked_where_there_is_no_tokenizer(encoder: PromptEncoder) -> None:
    engine = Engine()
    encoder.register("m", EnginePrompts(engine))

    outcomes = [await encoder.encode("m", body) for body in (chat("q"), completion("p"), completion([7, 8]))]

    assert [list(array("I", outcome.tokens)) for outcome in outcomes] == [[1, 2], [1, 2], [7, 8]]
    assert engine.asked == [[{"role": "user", "content": "q"}], "p"]
    assert encoder.counts.by_engine == 3


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (Engine(tokens=None), Reason.ENGINE_FAILED),
        (Engine(error=OSError("refused")), Reason.ENGINE_FAILED),
        (Engine(hangs=True), Reason.TIMED_OUT),
    ],
)
async def test_an_engine_that_gives_no_tokens(encoder: PromptEncoder, engine: Engine, reason: Reason) -> None:
    encoder.register("m", EnginePrompts(engine, limit_s=0.01 if engine.hangs else 30.0))

    outcome = await encoder.encode("m", chat())

    assert isinstance(outcome, NotEncoded)
    assert outcome.reason is reason


@pytest.mark.parametrize(
    "body",
    [
        chat(tools=[{"type": "function", "function": {"name": "f"}}]),
        chat(continue_final_message=True),
        chat([{"type": "text", "text": "a"}]),
        completion("p", add_special_tokens=False),
    ],
)
async def test_an_engine_is_not_asked_what_its_route_does_not_take(
    encoder: PromptEncoder, body: ChatRequest | CompletionRequest
) -> None:
    engine = Engine()
    encoder.register("m", EnginePrompts(engine))

    assert isinstance(await encoder.encode("m", body), NotEncoded)
    assert engine.asked == []


class Gate:
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.running.set()
        assert self.open.wait(10)
        return "done"


async def test_no_more_jobs_wait_than_are_allowed() -> None:
    pool = WorkerPool(threads=1, max_jobs=2, max_bytes=100)
    gate = Gate()
    first = pool.submit(gate, 60)

    with pytest.raises(NotTokenizable, match="1 prompts with 60 bytes wait") as caught:
        pool.submit(gate, 60)
    second = pool.submit(lambda: "next", 10)
    with pytest.raises(NotTokenizable):
        pool.submit(gate, 1)
    gate.open.set()

    assert caught.value.reason is Reason.OVERLOADED
    assert [await pool.result(job, 10) for job in (first, second)] == ["done", "next"]
    pool.close()
    with pytest.raises(NotTokenizable, match="shutting down"):
        pool.submit(gate, 1)
    assert pool.jobs == 0


async def test_a_job_larger_than_the_bound_runs_alone() -> None:
    pool = WorkerPool(threads=1, max_jobs=2, max_bytes=100)

    assert await pool.result(pool.submit(lambda: "done", 1000), 10) == "done"
    pool.close()


async def test_a_job_given_up_counts_until_it_ends_and_one_that_waits_never_runs() -> None:
    pool = WorkerPool(threads=1, max_jobs=9, max_bytes=100)
    gate, never = Gate(), Gate()
    running = pool.submit(gate, 1)
    waiting = asyncio.ensure_future(pool.result(pool.submit(never, 1), 10))
    await asyncio.to_thread(gate.running.wait, 10)

    with pytest.raises(NotTokenizable) as caught:
        await pool.result(running, 0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert caught.value.reason is Reason.TIMED_OUT
    assert pool.jobs == 1
    gate.open.set()
    assert await pool.result(pool.submit(lambda: "after", 1), 10) == "after"
    assert not never.running.is_set()
    pool.close()


async def test_an_overload_is_a_reason(load: Load) -> None:
    encoder = PromptEncoder(EncoderSettings(inline_characters=0, max_waiting_jobs=0))
    encoder.register("m", await load())

    outcome = await encoder.encode("m", chat())

    assert isinstance(outcome, NotEncoded)
    assert outcome.reason is Reason.OVERLOADED
    encoder.close()
