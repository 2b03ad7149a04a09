"""Engines that compute, on machines whose links are shaped: what is moved follows from what the system measured."""

from __future__ import annotations

import json
import random
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.running import LIMIT_S, Running
from support.shaped_network import ShapedNetwork

pytestmark = pytest.mark.faults

TOKEN = {"POINTSMAN_NODE_TOKEN": "a-token-for-tests"}
RATES = {"fast": 1000, "middle": 50, "slow": 1}
"""Mb/s of the links of machines whose engines answer; the one that computes prompts has all that it can use."""
PROMPTS = "prompts"
TOKENS = 1600
"""Of a prompt; 512 bytes of KV each."""
PORT = 8000
TRIES = 4
"""Another process may have had the processor while links were probed."""
CLEAR = 3.0
"""How many times faster one way has to be for the decision to be beyond doubt."""
ANSWER = {"model": "m", "temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Machines:
    """Engines and nodes on all of them, and a front end on one of its own that is told nothing of links."""

    def __init__(self, network: ShapedNetwork, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.config = folder / "pointsman.yaml"
        self.running: list[Running] = []
        self.inside: ThreadPoolExecutor
        self.rng = random.Random(5)
        self.admin = f"http://127.0.0.1:{PORT + 1}"

    def run(self, machine: str, *arguments: str) -> Running:
        self.running.append(Running(arguments, self.folder, TOKEN, self.network.prefix(machine)))
        return self.running[-1]

    def open(self) -> None:
        self.network.add("front", None)
        self.inside = self.network.inside("front")
        waits = []
        for machine, rate in {PROMPTS: None, **RATES}.items():
            address = self.network.add(machine, rate)
            engine = ["engine", "--kind", "embedded", "--served-name", "m", "--host", address, "--port", str(PORT)]
            engine += ["--kv-transport", "tcp", "--kv-transfer", f"{address}:7000", "--max-model-len", "4096"]
            engine += ["--kv-events", "tcp://*:5557", "--replay", "tcp://*:5558"]
            waits.append((self.run(machine, *engine), "serves"))
            waits.append((self.run(machine, "node", "--listen", f"{address}:8090"), "node at"))
        for process, line in waits:
            process.line(line)
        self.configure("auto")
        self.run("front", "serve", "--config", str(self.config)).line("pointsman serves")
        self.until(lambda: [one["kv"]["state"] for one in self.workers()] == ["complete"] * 4)

    def configure(self, mode: str) -> None:
        """The front end's file; `mode`: when KV moves."""
        nodes = [
            {"url": self.url(machine), "name": machine, "node_role": "prefill" if machine == PROMPTS else "decode"}
            for machine in (PROMPTS, *RATES)
        ]
        plane = {"listen_port": PORT, "admin_port": PORT + 1, "heartbeat_interval": "500ms", "debug_headers": True}
        tree = {
            "control-plane": plane,
            "execution-group": {"nodes": nodes},
            "routing": {"policy": "cost", "kv_transfer": mode},
        }
        self.config.write_text(json.dumps(tree))

    def close(self) -> None:
        for process in reversed(self.running):
            process.close()
        self.inside.shutdown()

    def url(self, machine: str) -> str:
        return f"http://{self.network.addresses[machine]}:{PORT}"

    def call(self, url: str, body: object = None, **headers: str) -> tuple[Any, dict[str, str]]:
        """On the front end's machine."""

        def fetch() -> tuple[Any, dict[str, str]]:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
            try:
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    return json.loads(answer.read()), {name.lower(): value for name, value in answer.headers.items()}
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{url}: {error.code} {error.read()!r}") from None

        return self.inside.submit(fetch).result(2 * LIMIT_S)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, [(w["id"], w["state"], w["reason"], w["kv"]) for w in self.workers()]
            time.sleep(0.05)

    def workers(self) -> list[dict[str, Any]]:
        return self.call(f"{self.admin}/v1/status")[0]["workers"]  # type: ignore[no-any-return]

    def links(self) -> dict[tuple[str, str], Any]:
        names = {address: name for name, address in self.network.addresses.items()}
        rows = self.call(f"{self.admin}/v1/links")[0]["links"]
        return {(names[row["source"]], names[row["target"]]): row for row in rows}

    def prompt(self, tokens: int = TOKENS) -> list[int]:
        return [self.rng.randrange(5, 250) for _ in range(tokens)]

    def complete(
        self, url: str, prompt: list[int], tokens: int, **headers: str
    ) -> tuple[list[int], int, dict[str, str]]:
        """Token ids of the answer, tokens of the prompt that the engine did not compute, headers."""
        body = {**ANSWER, "prompt": prompt, "max_tokens": tokens}
        answer, said = self.call(f"{url}/v1/completions", body, **headers)
        cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        return answer["choices"][0]["token_ids"], cached, said

    def knows(self, prompt: list[int]) -> bool:
        """Whether the front end has heard that the prompt's blocks are held."""
        query = {"model": "m", "block_size": 16, "token_ids": prompt, "instance_id": PROMPTS}
        held = self.call(f"{self.admin}/query", query)[0]
        return any(one["longest_matched"] >= len(prompt) - 16 for one in held["default"].values())

    def is_moved_to(self, machine: str) -> bool:
        """Whether a prompt that is held elsewhere was fetched, when that machine answers; the answer is the same."""
        prompt = self.prompt()
        alone, _, _ = self.complete(self.url(PROMPTS), prompt, 12)
        self.until(partial(self.knows, prompt))
        front, said = f"http://127.0.0.1:{PORT}", {"x-pointsman-worker": f"{machine}/0"}
        answer, cached, headers = self.complete(front, prompt, 12, **said)
        assert headers["x-pointsman-worker"] == f"{machine}/0"
        assert answer == alone
        return cached > TOKENS / 2  # apart or pulled: of this prompt nothing was there

    def compute_ms(self, machine: str) -> list[float]:
        """What prompts of which nothing is cached take there, by the test's own watch; the least first."""
        took = []
        for _ in range(3):
            prompt, start_s = self.prompt(), time.monotonic()
            self.complete(self.url(machine), prompt, 1)
            took.append((time.monotonic() - start_s) * 1000)
        return sorted(took)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    why_not = ShapedNetwork.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    with ShapedNetwork() as network:
        fleet = Machines(network, tmp_path)
        try:
            fleet.open()
            yield fleet
        finally:
            fleet.close()


def is_near(link: dict[str, Any] | None, mbit_per_s: int) -> bool:
    """Whether the link is believed to be as fast as it is."""
    return link is not None and link["gb_per_s"]["1MiB"] == pytest.approx(mbit_per_s / 8000, rel=0.35)


def test_prompts_held_elsewhere_are_moved_over_fast_links_and_computed_again_behind_slow_ones(
    machines: Machines,
) -> None:
    front = f"http://127.0.0.1:{PORT}"
    # The front end learns from traffic how fast engines compute …
    for machine in RATES:
        for tokens in (200, 400, 800, 1200, 1600, 600, 1000, 300):
            machines.complete(front, machines.prompt(tokens), 8, **{"x-pointsman-worker": f"{machine}/0"})
    # … and from probes how fast links are. Nobody tells either.
    assert machines.links().keys() <= {(PROMPTS, machine) for machine in RATES}
    nodes = [part for m in (PROMPTS, *RATES) for part in ("--node", f"http://{machines.network.addresses[m]}:8090")]
    doctor = ["doctor", "links", *nodes, "--transport", "tcp", "--seconds", "0.5", "--admin", machines.admin]
    for _ in range(TRIES):
        probing = machines.run("front", *doctor)
        # Some links are slower than others, and it says so.
        assert probing.process.wait(4 * LIMIT_S) == 1, probing.rest()
        measured = machines.links()
        if all(is_near(measured.get((PROMPTS, machine)), rate) for machine, rate in RATES.items()):
            break
    moved, clear = dict[str, int](), dict[str, bool]()
    for machine, mbit_per_s in RATES.items():
        link = measured[PROMPTS, machine]
        assert is_near(link, mbit_per_s), (machine, link)
        transfer_ms = TOKENS * 512 / (mbit_per_s * 125)
        before_ms = machines.compute_ms(machine)
        moved[machine] = sum(machines.is_moved_to(machine) for _ in range(4))
        # A busy machine computes faster or slower from one moment to the next, and what was learned is of any of them.
        compute_ms = sorted(before_ms + machines.compute_ms(machine))
        said = f"{machine}: moving takes {transfer_ms:.0f} ms, computing {compute_ms}; moved {moved[machine]} of 4"
        if compute_ms[0] > CLEAR * transfer_ms:
            clear[machine] = True
            assert moved[machine] >= 3, said
        elif CLEAR * statistics.median(compute_ms) < transfer_ms:
            clear[machine] = False
            assert moved[machine] <= 1, said
    assert clear.get("fast") is True, moved
    assert clear.get("slow") is False, moved
    assert machines.links()[PROMPTS, "fast"]["seen"] > measured[PROMPTS, "fast"]["seen"]
    for mode, moves in (("off", False), ("always", True)):
        machines.configure(mode)
        assert machines.call(f"{machines.admin}/v1/reload", {})[0]["changed"] == ["routing.kv_transfer"]
        assert [machines.is_moved_to(machine) for machine in RATES] == [moves] * len(RATES), mode
