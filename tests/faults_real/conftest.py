"""Real engines, real front ends, a proxy that cuts, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from support.faulty_proxy import FaultyProxy
from support.free_ports import free_ports
from support.running import Running

PROFILE = Path(__file__).parents[1] / "support" / "virtual" / "profile.yaml"
MODEL = "sim"
TOKENS = 200
"""Five seconds of a simulated engine: none is over before the last one of some has begun."""
LIMIT_S = 120.0
ROUNDS = 6
KINDS = {
    "sim": ("--model", MODEL, "--profile", str(PROFILE), "--speedup", "2"),
    "embedded": ("--served-name", MODEL),
}
"""What engines are started with, by their kind."""
AT_ONCE = {"sim": ("--speedup", "200"), "embedded": ()}
"""More of that for one that only says what is right."""
_AT_WORK = re.compile(r"^(?:vllm:num_requests_(?:running|waiting)|pointsman_kv_leases)\{[^}]*\} (\S+)$", re.MULTILINE)
CONFIG: dict[str, Any] = {
    "control-plane": {
        "heartbeat_interval": "1s",
        "timeouts": {"connect": "2s", "idle": "5s"},
    },
}


class Engine:
    """`pointsman engine` as a process that can be killed, stopped and started again."""

    def __init__(self, site: Site, port: int, *arguments: str) -> None:
        self._site, self.port = site, port
        self._arguments = arguments
        self.running: Running | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        arguments = ("engine", "--kind", self._site.kind, "--port", str(self.port), "--log-level", "warning")
        self.running = self._site.run(*arguments, *KINDS[self._site.kind], *self._arguments)
        await asyncio.to_thread(self.running.line, "serves")

    def signal(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.running is not None
        await asyncio.to_thread(self.running.process.wait, LIMIT_S)

    async def set_faults(self, **faults: Any) -> None:
        await asyncio.to_thread(_call, "POST", f"{self.url}/sim/faults", faults)

    async def at_work(self) -> int:
        """Sequences in the engine, and prompts that it keeps for others."""
        page = await asyncio.to_thread(_text, f"{self.url}/metrics")
        return sum(int(float(found)) for found in _AT_WORK.findall(page))

    async def figure(self, name: str) -> float:
        """One of its metrics, over all labels."""
        page = await asyncio.to_thread(_text, f"{self.url}/metrics")
        return sum(map(float, re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)))


@dataclass
class Asked:
    """One stream, as OpenAI's client reads it."""

    number: int
    text: str = ""
    pieces: int = 0
    finish_reason: str | None = None
    usage: Any = None
    worker: str = ""
    error: str = ""
    over: bool = False


@dataclass
class Site:
    """What a test has at hand."""

    folder: Path
    kind: str = "sim"
    """Of the engines."""
    tokens: int = TOKENS
    """Of each answer."""
    words: int = 30
    """Parts of each prompt."""
    engines: list[Engine] = field(default_factory=list)
    url: str = ""
    admin_url: str = ""
    processes: int = 1
    front_end: Running | None = None
    urls: list[str] = field(default_factory=list)
    """At which the front end calls the first engines, where it does not do so directly."""
    config: Path = Path()
    _running: list[Running] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _number: int = 0
    _ports: int = 0

    def run(self, *arguments: str, **environ: str) -> Running:
        """`pointsman ARGUMENTS…`."""
        self._running.append(Running(arguments, self.folder, environ))
        return self._running[-1]

    def port(self) -> int:
        """A free one that nobody else here takes."""
        if not self._ports:
            self._ports = free_ports(40)
        self._ports += 1
        return self._ports - 1

    async def add_engines(self, count: int, *arguments: str) -> None:
        """Start some at once."""
        news = [Engine(self, self.port(), *arguments) for _ in range(count)]
        self.engines += news
        await asyncio.gather(*(engine.start() for engine in news))

    async def serve(
        self, processes: int = 1, *, urls: list[str] | None = None, roles: list[str] | None = None, **sections: Any
    ) -> None:
        """Start the front end before all engines, at `urls` where they are not to be called directly."""
        self.urls = urls or []
        nodes = [{"url": url} for url in ([engine.url for engine in self.engines] if urls is None else urls)]
        for node, role in zip(nodes, roles or (), strict=False):
            node["node_role"] = role
        self.write_config(nodes, **sections)
        port, admin_port = self.port(), self.port()
        self._ports += processes
        arguments = ["--config", str(self.config), "--port", str(port), "--admin-port", str(admin_port)]
        arguments += ["--processes", str(processes)] if processes > 1 else []
        self.front_end = self.run("serve", *arguments)
        self.processes = processes
        self.url, self.admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"

        def all_there() -> bool:
            assert self.front_end is not None
            assert self.front_end.process.poll() is None, self.front_end.rest()
            return len(self.quick_statuses()) == processes and self.usable() >= len(nodes) * processes

        await self.until(all_there)

    def write_config(self, nodes: list[dict[str, Any]], **sections: Any) -> None:
        """The front end's file; `sections` are laid over the usual ones."""
        tree: dict[str, Any] = json.loads(json.dumps(CONFIG))
        if nodes:
            tree["execution-group"] = {"nodes": nodes}
        for name, section in sections.items():
            tree.setdefault(name.replace("_", "-"), {}).update(section)
        self.config = self.folder / "pointsman.yaml"
        self.config.write_text(json.dumps(tree))

    # ---- what `pointsman status` says

    def statuses(self) -> list[dict[str, Any]]:
        """One a front end, as `pointsman status --json` prints them."""
        shown = self.run("status", "--admin-url", self.admin_url, "--json")
        shown.process.wait(LIMIT_S)
        shown.close()
        text = "\n".join(shown.rest())
        with suppress(ValueError):
            found = json.loads(text)
            return found if isinstance(found, list) else [found]
        return []

    def quick_statuses(self) -> list[dict[str, Any]]:
        """The same from the admin ports, for waiting."""
        found = []
        for port in self.admin_ports():
            with suppress(OSError, ValueError):
                found.append(_call("GET", f"http://127.0.0.1:{port}/v1/status"))
        return found

    def admin_ports(self) -> list[int]:
        """One a front end."""
        first = int(self.admin_url.rpartition(":")[2])
        return list(range(first, first + self.processes))

    def usable(self) -> int:
        """Those for prompts only included."""
        return sum(
            worker["state"] in ("ready", "prefill") for status in self.quick_statuses() for worker in status["workers"]
        )

    async def migrations(self) -> float:
        """Streams with which another engine went on, as the front ends that are there now count them."""
        return sum([await Engine(self, port).figure("pointsman_migrations_total") for port in self.admin_ports()])

    def says(self, part: str) -> bool:
        """Whether `pointsman status` gives that reason anywhere."""
        return part in json.dumps(self.statuses())

    # ---- asking

    def ask(self, *, chat: bool = True, url: str | None = None) -> Asked:
        """Begin a stream."""
        self._number += 1
        asked = Asked(self._number)
        task = asyncio.create_task(self._read(asked, chat, self.tokens, url or self.url))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asked

    async def _read(self, asked: Asked, chat: bool, tokens: int, url: str) -> None:
        prompt = " ".join(f"word{asked.number} number {n} of it" for n in range(self.words))
        extra: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "stream": True}
        extra["stream_options"] = {"include_usage": True}
        extra["extra_body"] = {"ignore_eos": True}
        # Certificates that nobody checks need not be read, which takes longer than all else before a stream.
        plain = openai.DefaultAsyncHttpxClient(verify=False, timeout=LIMIT_S)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=plain)
        try:
            if chat:
                messages: Any = [{"role": "user", "content": prompt}]
                raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, **extra)
            else:
                raw = await client.completions.with_raw_response.create(model=MODEL, prompt=prompt, **extra)
            asked.worker = raw.headers.get("x-pointsman-worker", "")
            async for event in raw.parse():
                asked.usage = event.usage or asked.usage
                for choice in event.choices:
                    piece = (choice.delta.content if chat else choice.text) or ""
                    asked.text += piece
                    asked.pieces += bool(piece)
                    asked.finish_reason = choice.finish_reason or asked.finish_reason
        except openai.OpenAIError as error:
            asked.error = f"{type(error).__name__}: {error}"
        finally:
            asked.over = True
            await client.close()

    async def begun(self, count: int, *, at: int | None = None, tokens: int = 8) -> list[Asked]:
        """So many streams, each with some tokens; of which at least one is under way at the engine of that number.

        Front ends that do not know of each other's requests yet may all choose another one, and a process that gets
        little time may see the first ones end before the last one begins: then as many are begun again.
        """
        asked: list[Asked] = []
        for _ in range(ROUNDS):
            news = [self.ask() for _ in range(count)]
            asked += news
            await self.until(lambda news=news: all(one.pieces >= tokens or one.over for one in news))  # type: ignore[misc]
            if at is None or self.at(asked, at):
                return asked
        seen = [one.error or (one.worker, one.over) for one in asked]
        raise AssertionError(f"no stream is under way at engine {at}: {seen}")

    def at(self, asked: list[Asked], number: int) -> list[Asked]:
        """Those that are under way at one engine."""
        return [one for one in asked if one.worker == self.worker(number) and not one.over]

    def worker(self, number: int) -> str:
        """Name of the worker that the engine is."""
        url = self.urls[number] if number < len(self.urls) else self.engines[number].url
        return f"{url.removeprefix('http://')}/0"

    async def all_right(self, asked: list[Asked], *, seconds: float = LIMIT_S) -> None:
        """Every stream ended, and is token by token what an engine alone would have said."""
        await self.until(lambda: all(one.over for one in asked), seconds)
        lone = Engine(self, self.port(), *AT_ONCE[self.kind])
        await lone.start()
        for one in asked:
            right = Asked(one.number)
            await self._read(right, True, one.usage.completion_tokens if one.usage else self.tokens, lone.url)
            assert one.error == "", (
                f"stream {one.number}, first at {one.worker}, after {one.pieces} pieces: {one.error}"
            )
            assert one.text == right.text
            assert (one.finish_reason, one.usage.completion_tokens) == ("length", self.tokens)
            assert one.usage.prompt_tokens == right.usage.prompt_tokens
        await lone.kill()

    async def at_rest(self) -> None:
        """Nothing is counted anywhere any more."""

        def rest() -> bool:
            statuses = self.quick_statuses()
            counted = [
                number
                for status in statuses
                for number in (status["requests"]["running"], status["requests"]["waiting"])
            ]
            counted += [number for s in statuses for w in s["workers"] for number in (w["running"], w.get("others", 0))]
            return bool(statuses) and not any(counted)

        await self.until(rest)
        for engine in self.engines:
            if engine.running is not None and engine.running.process.poll() is None:
                # A canary may be there just now, of any of the front ends.
                async with asyncio.timeout(LIMIT_S):
                    while await engine.at_work():
                        await asyncio.sleep(0.05)

    async def until(self, holds: Callable[[], bool], seconds: float = LIMIT_S) -> None:
        """Wait until something holds; it fails loudly when that takes too long."""
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(holds):
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for running in self._running:
            with suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGCONT)
            running.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Nothing runs yet; whatever does at the end is killed."""
    made = Site(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Callable[[int], Any]]:
    """`await proxy(port)`: a way to a port on this host that can be cut."""
    made: list[FaultyProxy] = []

    async def make(port: int) -> FaultyProxy:
        made.append(FaultyProxy(port))
        await made[-1].start()
        return made[-1]

    yield make
    for one in made:
        await one.close()


def _call(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.loads(answer.read() or b"null")


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


@pytest.fixture
def call() -> Callable[..., Any]:
    """`call(method, url, body)`: the JSON answer."""
    return _call
