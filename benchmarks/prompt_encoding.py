"""What token ids of a prompt cost, in this process: rendering, the cache of pieces, tokenizing, the hop to a thread.

usage: scripts/bench prompt_encoding --tokenizer DIRECTORY [--quick]
DIRECTORY has tokenizer.json, tokenizer_config.json and a chat template, as an engine's model directory does.
Prints its numbers; nothing is written. Not named for what it does: `tokenize` would hide Python's own module.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from harness import report
from harness.histogram import median
from harness.prompts import words
from pointsman.edge.prompts.encoder import EncoderSettings, NotEncoded, Pending, PromptEncoder
from pointsman.edge.prompts.local_prompts import EncodedPrompt, LocalPrompts, load_local_prompts
from pointsman.edge.prompts.meter import Meter
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.wire.openai import ChatRequest, parse_chat

ALWAYS_INLINE = EncoderSettings(inline_characters=1 << 30, inline_bytes=1 << 30, inline_steps=1 << 30)
NEVER_INLINE = EncoderSettings(inline_characters=0)


def chat(turns: list[str]) -> ChatRequest:
    """User and assistant by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return parse_chat(msgspec.json.encode({"model": "m", "messages": messages}))


def conversations(count: int, turns: int, words_a_turn: int) -> list[list[str]]:
    """Each different from the others."""
    rng = random.Random(count + turns)
    return [[words(words_a_turn, rng) for _ in range(turns)] for _ in range(count)]


def us_each(call: Callable[[ChatRequest], object], bodies: list[ChatRequest]) -> float:
    """Median of the calls, in microseconds."""
    times = []
    for body in bodies:
        start = time.perf_counter()
        call(body)
        times.append((time.perf_counter() - start) * 1e6)
    return median(times)


def encoder_of(prompts: LocalPrompts, settings: EncoderSettings) -> PromptEncoder:
    encoder = PromptEncoder(settings)
    encoder.register("m", prompts)
    return encoder


def encode_here(encoder: PromptEncoder, body: ChatRequest) -> EncodedPrompt:
    found = encoder.encode_now("m", body)
    if isinstance(found, Pending | NotEncoded):
        raise RuntimeError(f"not encoded at once: {found}")
    return found


async def encode_in_thread(encoder: PromptEncoder, body: ChatRequest) -> None:
    if isinstance(await encoder.encode("m", body), NotEncoded):
        raise RuntimeError("not encoded")


def measure_chats(prompts: LocalPrompts, count: int) -> list[list[str]]:
    """Prompts of which all, all but the last turn, or nothing was seen before."""
    encoder = encoder_of(prompts, ALWAYS_INLINE)
    rows = []
    for name, turns, words_a_turn in (("one turn of 75 words", 1, 75), ("20 turns of 100 words", 20, 100)):
        talks = conversations(count, turns, words_a_turn)
        bodies = [chat(talk) for talk in talks]
        for talk in talks:
            encode_here(encoder, chat(talk[:-2]) if turns > 2 else chat(["hello"]))
        first = us_each(lambda body: encode_here(encoder, body), bodies)
        again = us_each(lambda body: encode_here(encoder, body), bodies)
        rendering = us_each(lambda body: prompts.prepare(body, Meter(1 << 30, 1 << 30)), bodies)
        tokens = encode_here(encoder, bodies[0]).count
        seen = (turns - 2) * 100 // turns if turns > 2 else 0
        rows.append([name, f"{tokens}", f"{seen} %", *(report.number(us) for us in (first, again, rendering))])
    return rows


async def measure_threshold(prompts: LocalPrompts, count: int) -> list[list[str]]:
    """New text of growing length, on the loop and in a thread."""
    rows = []
    for number in (10, 50, 100, 200, 350, 700, 1400):
        here, there = conversations(count, 1, number), conversations(count + 1, 1, number)
        inline = encoder_of(prompts, ALWAYS_INLINE)
        us_here = us_each(lambda body, encoder=inline: encode_here(encoder, body), [chat(talk) for talk in here])
        pooled = encoder_of(prompts, NEVER_INLINE)
        start, start_cpu = time.perf_counter(), time.process_time()
        for talk in there:
            await encode_in_thread(pooled, chat(talk))
        us_there = (time.perf_counter() - start) / len(there) * 1e6
        us_cpu = (time.process_time() - start_cpu) / len(there) * 1e6
        pooled.close()
        rows.append([f"{len(here[0][0])}", *(report.number(us) for us in (us_here, us_there, us_cpu))])
    return rows


async def run(folder: Path, count: int) -> None:
    process = psutil.Process()
    before_mb = process.memory_info().rss / 1e6
    prompts = await load_local_prompts(TokenizerFiles(folder, "given"))
    after_mb = process.memory_info().rss / 1e6
    print(f"memory: {before_mb:.0f} MB before the tokenizer was loaded, {after_mb:.0f} MB after\n")
    header = ["chat", "tokens", "seen before", "first time, µs", "again, µs", "all but tokenizing, µs"]
    print(report.table(header, measure_chats(prompts, count)) + "\n")
    header = ["new characters", "on the loop, µs", "in a thread, µs", "CPU of it, µs"]
    print(report.table(header, await measure_threshold(prompts, count)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.tokenizer, 20 if arguments.quick else 200))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
