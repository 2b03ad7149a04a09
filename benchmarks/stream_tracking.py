"""What it costs, a chunk, to keep a stream so that it can go on elsewhere, and to take its token ids out again.

usage: scripts/bench stream_tracking [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from pointsman.edge.serving.migration.tracked import TrackedStream
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.sse import StreamScanner

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796033628,"model":"llama",'
    b'"choices":[{"index":0,"delta":{"content":" information"},"logprobs":null,"finish_reason":null,"token_ids":null}'
    b"]}\n\n"
)
WITH_IDS = CHUNK.replace(b'"token_ids":null', b'"token_ids":[13771]')
FIRST = CHUNK.replace(b',"token_ids":null}]', b'}],"prompt_token_ids":[1,2,3]')
LENGTHS = (50, 1_000)
"""Chunks a stream: of the longer one what is kept is read as it grows."""


def scanned() -> Callable[[bytes], bytes]:
    """A stream of which only usage and end are looked for."""
    return StreamScanner(hide_usage=True).feed


def tracked() -> Callable[[bytes], bytes]:
    """One that is kept."""
    return TrackedStream(Transcript(), lambda: None, hide_usage=True, strips=False).feed


def stripped() -> Callable[[bytes], bytes]:
    """One whose token ids are taken out, too."""
    feed = TrackedStream(Transcript(), lambda: None, hide_usage=True, strips=True).feed
    feed(FIRST)
    return feed


def cost_us(make: Callable[[], Callable[[bytes], bytes]], chunk: bytes, chunks: int, rounds: int) -> float:
    """Of one chunk: the least of all rounds, since whatever else runs here only adds to it."""
    least = float("inf")
    for _ in range(rounds):
        feed = make()
        began = time.perf_counter()
        for _ in range(chunks):
            feed(chunk)
        least = min(least, time.perf_counter() - began)
    return 1e6 * least / chunks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 20 if parser.parse_args().quick else 400
    print("| chunks a stream | read along, µs a chunk | kept, more | and token ids taken out, more |")
    print("|---:|---:|---:|---:|")
    for chunks in LENGTHS:
        base = cost_us(scanned, CHUNK, chunks, rounds)
        kept = cost_us(tracked, CHUNK, chunks, rounds) - base
        without = cost_us(stripped, WITH_IDS, chunks, rounds) - base - kept
        print(f"| {chunks:,} | {base:.2f} | {kept:.2f} | {without:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
