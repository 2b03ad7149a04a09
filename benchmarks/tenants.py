"""What keys and limits cost a request, in one process: from the look at its head to the settling of what it came to.

CPU time of the process, the least of several rounds: other work on the machine does not count.

usage: scripts/bench tenants [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from harness import report
from harness.command import carry_out
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.request import Request
from pointsman.edge.cluster.replicas.bus import NoBus
from pointsman.edge.configuration.tenants import LimitSet, TenantLimits, Tenants
from pointsman.edge.serving.clock import monotonic_ms
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.tenants.tenancy import Tenancy, TenancySettings
from pointsman.edge.wire.http1_request import IncomingRequest

PAGE = report.ROOT / "docs" / "security.md"
BAR_US = 15.0
PLENTY = 10**12
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rounds: int = 9
    requests: int = 20_000
    keys: int = 1_000
    tenants: int = 50
    headers: int = 9


def keys_file(folder: Path, options: Options, *, limits: bool) -> Path:
    """Keys `key-0`, `key-1` and so on."""
    own = f", limits: {{requests_per_minute: {PLENTY}}}" if limits else ""
    lines = [
        f"- {{id: k{n}, tenant: t{n % options.tenants}, sha256: {hashlib.sha256(b'key-%d' % n).hexdigest()}{own}}}\n"
        for n in range(options.keys)
    ]
    path = folder / f"keys-{limits}.yaml"
    path.write_text("keys:\n" + "".join(lines))
    return path


def incoming(options: Options) -> IncomingRequest:
    """With its key behind all other headers."""
    others = [(b"x-stainless-%d" % n, b"value") for n in range(options.headers - 1)]
    return IncomingRequest("POST", b"/v1/chat/completions", (*others, (b"authorization", b"Bearer key-7")), b"", "peer")


def least_us(one: Callable[[], None], options: Options) -> float:
    """CPU microseconds a call."""
    best = float("inf")
    for _ in range(options.rounds):
        gc.collect()
        started = time.process_time()
        for _ in range(options.requests):
            one()
        best = min(best, time.process_time() - started)
    return best / options.requests * 1e6


async def cost_us(settings: TenancySettings, options: Options) -> float:
    """Of one request that passes."""
    tenancy = Tenancy(settings, Ledger(), NoBus(), monotonic_ms)
    gate, asked = tenancy.gate, incoming(options)
    request = Request("id", "m", 0.0, 100, tenant="t7", api="chat")
    ended = SimpleNamespace(usage=SimpleNamespace(prompt_tokens=100, completion_tokens=50), events=50)
    exchange = cast(
        Exchange, SimpleNamespace(request=request, limit_headers=(), sent=True, status="finished", record=ended)
    )

    def one() -> None:
        if not gate.active:
            return
        gate.ended(gate.reserve(gate.admit(asked), exchange), exchange)

    found = least_us(one, options)
    assert all(account.running == 0 for account in tenancy.book)
    await tenancy.close()
    return found


async def measure(options: Options) -> Results:
    """Each case."""
    tenant = TenantLimits(requests_per_minute=PLENTY, tokens_per_minute=PLENTY, concurrency=10**6)
    by_model = TenantLimits(
        requests_per_minute=PLENTY,
        tokens_per_minute=PLENTY,
        concurrency=10**6,
        models={"m": LimitSet(tokens_per_minute=PLENTY)},
    )
    with tempfile.TemporaryDirectory() as name:
        keys, keys_with_limits = (keys_file(Path(name), options, limits=limits) for limits in (False, True))
        cases = {
            "neither keys nor limits": TenancySettings(),
            "keys": TenancySettings(keys),
            "limits of the tenant": TenancySettings(None, Tenants(default=tenant)),
            "keys, limits of the tenant": TenancySettings(keys, Tenants(default=tenant)),
            "keys, limits of key, tenant and model": TenancySettings(keys_with_limits, Tenants(default=by_model)),
        }
        return {"us": {name: round(await cost_us(settings, options), 2) for name, settings in cases.items()}}


def summary(results: Results) -> Results:
    """The dearest case."""
    most = max(results["us"].values())
    return {"most_us": most, "met": most <= BAR_US}


def markdown(results: Results) -> str:
    """A row a case."""
    return report.table(["Keys and limits", "CPU µs a request"], [[n, f"{us:.1f}"] for n, us in results["us"].items()])


def main() -> int:
    """Measure and keep; `--quick` only looks whether it works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is kept")
    quick = parser.parse_args().quick
    options = Options(rounds=2, requests=500, keys=20) if quick else Options()
    return carry_out(
        "tenants", options, lambda: asyncio.run(measure(options)), markdown, keep=not quick, summary=summary, page=PAGE
    )


if __name__ == "__main__":
    sys.exit(main())
