"""Multi-turn chats over a real fleet on this computer: what round_robin and prefix routing leave to compute.

usage: scripts/bench local_fleet [--quick] [--model FILE.gguf]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from harness import report
from harness.chats import ChatPlan, Turn, run_chats, stream_chat
from harness.command import carry_out
from harness.histogram import Percentiles, percentiles_ms, ratio
from harness.noise import NoiseMeter
from harness.processes import BenchmarkError, Processes, free_ports, processes

ARMS = ("round_robin", "prefix")
LEAST_NEW_SHARE = 0.1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rounds: int = 2
    sessions: int = 4
    turns: int = 6
    growth: float = 0.16
    """Each user message is that much of the conversation so far."""
    concurrency: int = 2
    system_words: int = 60
    """Length of the system prompt that all chats of an arm begin with."""


def run(options: Options, model: str | None) -> dict[str, Any]:
    """One fleet; arms in the order A B B A …, each with sessions that nobody has seen before."""
    turns: dict[str, list[list[Turn]]] = {arm: [] for arm in ARMS}
    with processes() as group:
        url, admin_url = _start_fleet(group, model)
        noise = NoiseMeter(group.pids())
        for number in range(options.rounds):
            for arm in ARMS if number % 2 == 0 else reversed(ARMS):
                turns[arm].append(asyncio.run(_one_arm(url, admin_url, arm, options, seed=len(turns[arm]) * 2)))
                print(f"round {number + 1} of {options.rounds}: {arm} done", flush=True)
        return {"foreign_cores": noise.foreign_cores(), "turns": turns}


def _start_fleet(group: Processes, model: str | None) -> tuple[str, str]:
    port, admin_port = free_ports(2)
    command = [sys.executable, "-m", "pointsman.app.cli.main", "up", "--port", str(port)]
    command += ["--admin-port", str(admin_port), *(["--model", model] if model else [])]
    print("starting two llama.cpp engines and the front end", flush=True)
    group.start("fleet", command)
    group.await_http("fleet", port, "/ready", contains='"workers":2', timeout_s=300)
    return f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"


async def _one_arm(url: str, admin_url: str, arm: str, options: Options, seed: int) -> list[Turn]:
    """Both arms of a round talk about the same number of words, but never the same ones."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.put(f"{admin_url}/v1/policy", json={"policy": arm}):
            pass
        async with session.get(f"{url}/v1/models") as answer:
            name = (await answer.json())["data"][0]["id"]
        await stream_chat(session, url, name, [{"role": "user", "content": "Say hello."}])
    plan = ChatPlan(
        options.sessions, options.turns, options.growth, options.concurrency, system_words=options.system_words
    )
    return await run_chats(url, name, plan, seed + ARMS.index(arm))


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all rounds. Turns after the first of each session, except where it says otherwise."""

    requests: int
    prompt_tokens: int
    cached_share: float
    cached_share_first_turns: float
    ttft_ms: Percentiles
    ttft_mean_ms: float
    least_new_share: float
    mean_new_share: float
    stayed_share: float
    """Answered by the engine that answered the session's turn before."""
    repeated_requests: int
    repeated_cached_share: float
    repeated_ttft_p50_ms: float | None


def summary(results: Mapping[str, Any]) -> dict[str, ArmSummary]:
    """Each arm, all rounds together."""
    return {arm: summarise(rounds) for arm, rounds in results["turns"].items()}


def summarise(rounds: Sequence[Sequence[Turn]]) -> ArmSummary:
    """One arm. Raises BenchmarkError when a prompt was not new enough to prove anything."""
    later = [turn for one in rounds for turn in one if turn.turn and not turn.repeated]
    first = [turn for one in rounds for turn in one if not turn.turn]
    repeated = [turn for one in rounds for turn in one if turn.repeated]
    least_new = min(turn.new_share for turn in later)
    if least_new < LEAST_NEW_SHARE:
        raise BenchmarkError(f"only {least_new:.1%} of a prompt was new: raise the growth of the chats")
    return ArmSummary(
        requests=len(later),
        prompt_tokens=sum(turn.prompt_tokens for turn in later),
        cached_share=_cached_share(later),
        cached_share_first_turns=_cached_share(first),
        ttft_ms=percentiles_ms([turn.ttft_s for turn in later]),
        ttft_mean_ms=statistics.mean(turn.ttft_s for turn in later) * 1e3,
        least_new_share=least_new,
        mean_new_share=statistics.mean(turn.new_share for turn in later),
        stayed_share=_stayed_share(rounds),
        repeated_requests=len(repeated),
        repeated_cached_share=_cached_share(repeated),
        repeated_ttft_p50_ms=percentiles_ms([turn.ttft_s for turn in repeated]).p50,
    )


def _cached_share(turns: Sequence[Turn]) -> float:
    return sum(turn.cached_tokens for turn in turns) / max(sum(turn.prompt_tokens for turn in turns), 1)


def _stayed_share(rounds: Sequence[Sequence[Turn]]) -> float:
    workers: dict[tuple[int, int, int], str] = {
        (number, turn.session, turn.turn): turn.worker for number, one in enumerate(rounds) for turn in one
    }
    pairs = [(workers[n, s, t - 1], worker) for (n, s, t), worker in workers.items() if t]
    return sum(before == after for before, after in pairs) / max(len(pairs), 1)


def markdown(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    arms = summary(results)
    header = [
        "policy",
        "requests",
        "cached tokens",
        "TTFT p50 ms",
        "TTFT p90 ms",
        "TTFT mean ms",
        "same engine as the turn before",
        "new in each prompt (least)",
        "identical prompt: cached, TTFT p50 ms",
    ]
    lines = [_line(name, arm) for name, arm in arms.items()]
    base, ours = (arms[name].ttft_ms.p50 for name in ARMS)
    gain = ratio(ours, base)
    noise = report.noise_line(results["foreign_cores"])
    return f"{report.table(header, lines)}\n\nTTFT p50 of prefix ÷ round_robin: {report.number(gain, 2)}. {noise}"


def _line(name: str, arm: ArmSummary) -> list[str]:
    return [
        name,
        str(arm.requests),
        f"{arm.cached_share:.1%}",
        report.number(arm.ttft_ms.p50),
        report.number(arm.ttft_ms.p90),
        report.number(arm.ttft_mean_ms),
        f"{arm.stayed_share:.0%}",
        f"{arm.mean_new_share:.0%} ({arm.least_new_share:.0%})",
        f"{arm.repeated_cached_share:.1%}, {report.number(arm.repeated_ttft_p50_ms)}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of three turns, nothing written")
    parser.add_argument("--system-words", type=int, default=Options().system_words, help="0 = no common beginning")
    parser.add_argument("--model", help="a GGUF file; default: the model of `pointsman up`")
    arguments = parser.parse_args()
    options = Options(system_words=arguments.system_words)
    if arguments.quick:
        options = msgspec.structs.replace(options, rounds=1, turns=3)
    return carry_out(
        "local_fleet",
        options,
        lambda: run(options, arguments.model),
        markdown,
        summary=summary,
        keep=not arguments.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
