"""A real etcd for each test of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient
from support.etcd_server import EtcdServer


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdAccess((etcd.url,), timeout_s=5.0)) as client:
        yield client
