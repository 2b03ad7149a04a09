"""Signals end a verb, after it cleaned up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.core.model.errors import EngineError


def test_result() -> None:
    async def work() -> int:
        return 7

    assert run_until_stopped(work()) == 7


def test_an_error_passes() -> None:
    async def work() -> int:
        raise EngineError("no")

    with pytest.raises(EngineError):
        run_until_stopped(work())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_it_clean_up(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    cleaned: list[bool] = []

    async def work() -> int:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return 1

    before = signal.getsignal(number)
    assert run_until_stopped(work()) == 0
    assert cleaned == [True]
    assert "stopping" in capsys.readouterr().err
    assert signal.getsignal(number) in (before, signal.SIG_DFL)


def test_a_second_signal_ends_at_once() -> None:
    script = (
        "import asyncio, os, signal\n"
        "from pointsman.app.cli.run_loop import run_until_stopped\n"
        "async def work():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    try:\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        await asyncio.sleep(60)\n"
        "run_until_stopped(work())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=30)
    assert done.returncode == 130
