"""Places with names, asked for beside the messages."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Collection

import pytest

from pointsman.edge.cluster.replicas import named_places
from pointsman.edge.cluster.replicas.named_places import NamedPlaces
from support.log_lines import own_lines
from support.virtual_time import run_virtually


class Names:
    """What a name server says: addresses, an error, or nothing at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **said: list[str] | OSError | None) -> None:
        self.said = said
        monkeypatch.setattr(named_places, "addresses_of", self._ask)

    async def _ask(self, host: str, port: int) -> list[str]:
        said = self.said[host]
        if said is None:
            await asyncio.Event().wait()
        if isinstance(said, OSError):
            raise said
        return list(said or ())


def test_a_name_without_an_answer_keeps_nobody_waiting(monkeypatch, caplog) -> None:
    names = Names(monkeypatch, a=["10.0.0.1"], dead=None, absent=OSError(-2, "Name or service not known"))

    async def work() -> None:
        told: list[Collection[str]] = []
        places = NamedPlaces(told.append)
        direct = ["ipc:///x/1.sock", "tcp://10.0.0.9:1", "tcp://[fd00::9]:1"]
        places.follow([*direct, "tcp://a:1", "tcp://dead:2", "tcp://absent:3"])
        assert told == [direct]
        await asyncio.sleep(0.1)
        assert told[-1] == [*direct, "tcp://10.0.0.1:1"]
        await asyncio.sleep(10.0)
        assert places.trouble == (
            "tcp://absent:3: its address can't be found: Name or service not known; "
            "tcp://dead:2: its address can't be found: nobody answers"
        )
        names.said |= {"absent": ["fd00::3"], "dead": ["10.0.0.2"]}
        await asyncio.sleep(10.0)
        assert places.trouble is None
        assert told[-1] == [*direct, "tcp://10.0.0.1:1", "tcp://10.0.0.2:2", "tcp://[fd00::3]:3"]
        places.close()

    with caplog.at_level(logging.WARNING, "pointsman.cluster"):
        run_virtually(work())
    assert len(own_lines(caplog)) == 2  # one a name


def test_an_address_that_changes_and_one_of_several_in_changing_order(monkeypatch) -> None:
    names = Names(monkeypatch, a=["10.0.0.1", "10.0.0.2"])

    async def work() -> None:
        told: list[Collection[str]] = []
        places = NamedPlaces(told.append)
        places.follow(["tcp://a:1"])
        await asyncio.sleep(1.0)
        names.said["a"] = ["10.0.0.2", "10.0.0.1"]
        await asyncio.sleep(60.0)
        assert told == [[], ["tcp://10.0.0.1:1"]]
        names.said["a"] = ["10.0.0.3"]
        await asyncio.sleep(11.0)
        assert told[-1] == ["tcp://10.0.0.3:1"]
        names.said["a"] = OSError(-3, "Temporary failure in name resolution")
        await asyncio.sleep(60.0)
        assert told[-1] == ["tcp://10.0.0.3:1"]  # what is known stays
        places.follow([])
        assert (told[-1], places.trouble) == ([], None)

    run_virtually(work())


async def test_names_of_this_host() -> None:
    found = await named_places.addresses_of("localhost", 1)
    assert {"127.0.0.1", "::1"} & set(found)
    with pytest.raises(socket.gaierror):
        await named_places.addresses_of("no such host", 1)
