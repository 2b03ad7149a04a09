"""KV on the move between two embedded engines: how fast by which way, and what codecs save, cost and change.

usage: scripts/bench kv_transfers [--model seed:0|DIRECTORY|FILE.gguf] [--tokens 256] [--prompts 8] [--quick]
All in this process: two event loops of engines would share the computer anyway. Prints its numbers; nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import report
from pointsman.edge.engines.embedded.batch import Part
from pointsman.edge.engines.embedded.blas_threads import limit_blas_threads
from pointsman.edge.engines.embedded.decoder import Decoder
from pointsman.edge.engines.embedded.kv_blocks import KvBlocks
from pointsman.edge.engines.embedded.loaded_model import LoadedModel, load_model
from pointsman.edge.engines.embedded.sampling import log_softmax
from pointsman.edge.transfer.blocks import BlockName, Grant, Peer
from pointsman.edge.transfer.client import TransferClient
from pointsman.edge.transfer.codecs import codec, codec_names
from pointsman.edge.transfer.memory import BlockMemory
from pointsman.edge.transfer.nixl_agent import NixlAgent, nixl_installed
from pointsman.edge.transfer.server import TransferServer

BLOCK_TOKENS = 16
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"


def prompts_of(model: LoadedModel, count: int, tokens: int) -> list[list[int]]:
    """Parts of a page of ours."""
    ids = model.text.encode(TEXT.read_text(), add_special_tokens=False)
    if len(ids) < tokens:
        raise SystemExit(f"kv_transfers: the page has {len(ids)} tokens; ask for fewer")
    apart = (len(ids) - tokens) // max(1, count - 1) if count > 1 else 0
    return [ids[number * apart : number * apart + tokens] for number in range(count)]


def computed(decoder: Decoder, prompt: list[int], answer: int) -> tuple[KvBlocks, list[int]]:
    """The KV of a prompt without its last token, and a table with room for the answer."""
    blocks = -(-(len(prompt) + answer) // BLOCK_TOKENS)
    kv = KvBlocks(decoder.config, blocks, BLOCK_TOKENS)
    table = list(range(1, blocks + 1))
    for first in range(0, len(prompt) - 1, 128):
        decoder.forward([Part(prompt[first : min(first + 128, len(prompt) - 1)], first, table, False)], kv)
    return kv, table


def answered(decoder: Decoder, kv: KvBlocks, table: list[int], prompt: list[int], count: int) -> tuple[Any, list[int]]:
    """Logits after the prompt, and the likeliest tokens from there on."""
    tokens, first = list(prompt), None
    for _ in range(count):
        logits = decoder.forward([Part(tokens[-1:], len(tokens) - 1, table, True)], kv)[0]
        first = logits if first is None else first
        tokens.append(int(logits.argmax()))
    return first, tokens[len(prompt) :]


def through(kv: KvBlocks, table: Sequence[int], name: str, decoder: Decoder) -> tuple[KvBlocks, float, float, float]:
    """A copy whose blocks went through a codec; bytes a byte, and ms a MB to encode and to decode."""
    coded = KvBlocks(decoder.config, kv.blocks, BLOCK_TOKENS)
    size, encode_s, decode_s = 0, 0.0, 0.0
    for number in table:
        start = time.thread_time()
        data = codec(name).encode(kv.block(number))
        middle = time.thread_time()
        coded.block(number)[:] = codec(name).decoded(data, kv.memory.layout)
        decode_s += time.thread_time() - middle
        encode_s += middle - start
        size += len(data)
    whole = len(table) * kv.block_bytes
    return coded, size / whole, encode_s * 1e9 / whole, decode_s * 1e9 / whole


def measure_codecs(model: LoadedModel, prompts: list[list[int]], answer: int) -> list[list[str]]:
    decoder, found = model.decoder, dict[str, list[tuple[float, ...]]]()
    for prompt in prompts:
        kv, table = computed(decoder, prompt, answer)
        held = table[: -(-(len(prompt) - 1) // BLOCK_TOKENS)]
        plain, *_ = through(kv, held, "none", decoder)
        logits, ids = answered(decoder, plain, table, prompt, answer)
        expected = log_softmax(logits)
        for name in codec_names():
            coded, ratio, encode, decode = through(kv, held, name, decoder)
            other, its = answered(decoder, coded, table, prompt, answer)
            actual = log_softmax(other)
            same = next((n for n, (a, b) in enumerate(zip(ids, its, strict=True)) if a != b), answer)
            divergence = float((np.exp(expected) * (expected - actual)).sum())
            row = (ratio, encode, decode, float(np.abs(other - logits).max()), divergence, same)
            found.setdefault(name, []).append(row)
    rows = []
    for name, each in found.items():
        ratio, encode, decode, _, divergence, same = np.mean(each, axis=0)
        worst = max(row[3] for row in each)
        alike = sum(row[5] == answer for row in each)
        cells = [f"{ratio:.3f}", f"{encode:.2f}", f"{decode:.2f}", f"{worst:.2g}", f"{divergence:.1e}"]
        rows.append([name, *cells, f"{alike} of {len(each)}", f"{same:.1f}"])
    return rows


class Everything:
    """Lets anybody read all blocks."""

    alive = True

    def __init__(self, blocks: int) -> None:
        self.blocks = {number: BlockName(number, number, BLOCK_TOKENS) for number in range(blocks)}

    def extend(self) -> None:
        """It has no end."""

    def release(self) -> None:
        """It has no end."""

    def grant(self, token: str) -> Grant | None:
        """Whatever the token."""
        return self


async def measure_ways(decoder: Decoder, repeats: int) -> list[list[str]]:
    """Time of transfers of 1, 16 and 256 blocks, at most 256 MB."""
    kv = KvBlocks(decoder.config, 1, BLOCK_TOKENS)
    layout = kv.memory.layout
    most = min(256, (256 << 20) // layout.block_bytes)
    memory = BlockMemory(layout, most)
    memory.array[:] = np.random.default_rng(1).standard_normal(memory.array.shape, np.float32)
    target = BlockMemory(layout, most)
    source = Everything(most)
    here = NixlAgent(target) if nixl_installed() else None
    there = NixlAgent(memory) if nixl_installed() else None
    ways = [*(["nixl"] if here is not None else []), "shm", "tcp"]
    server = TransferServer(memory, source, ways, nixl=None if there is None else there.offer)
    await server.start("127.0.0.1", 0)
    peer = Peer("P", "127.0.0.1", server.port, "any")

    def put(place: int, contents: Any) -> None:
        target.array[place] = contents

    rows = []
    for way in ways:
        client = TransferClient("D", layout, (way,), nixl=here)
        for count in (1, 16, most):
            wanted = list(source.blocks.values())[:count]
            reports = [await client.read(peer, wanted, put) for _ in range(repeats)]
            # The best of them: others may have the computer in between.
            ms, floor_ms = min(each.ms for each in reports), min(each.first_byte_ms for each in reports)
            mb = count * layout.block_bytes / 1e6
            rows.append([way, f"{count}", f"{mb:.2f}", f"{ms:.2f}", f"{floor_ms:.2f}", f"{mb / ms:.2f}"])
    await server.close()
    for agent in (here, there):
        if agent is not None:
            agent.thread.submit(agent.close).result()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="seed:0")
    parser.add_argument("--tokens", type=int, default=256, help="of each prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer that are compared")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    limit_blas_threads(1)
    model = load_model(arguments.model)
    prompts = prompts_of(model, 2 if arguments.quick else arguments.prompts, arguments.tokens)
    header = ["way", "blocks", "MB", "ms", "until the first byte, ms", "GB/s"]
    print(report.table(header, asyncio.run(measure_ways(model.decoder, 3 if arguments.quick else 9))) + "\n")
    header = [
        "codec",
        "bytes a byte",
        "encode, CPU ms/MB",
        "decode, CPU ms/MB",
        "largest change of a logit",
        "KL divergence",
    ]
    header += [f"answers of {arguments.answer} ids that stay the same", "ids until the first other one"]
    print(report.table(header, measure_codecs(model, prompts, arguments.answer)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
