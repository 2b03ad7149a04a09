"""A real etcd for tests: found or fetched once, started on loopback, stopped by its process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from support.free_ports import free_port

_CACHE = Path(__file__).parents[2] / ".pointsman" / "etcd"
_IN_PACKAGE = Path("usr/bin/etcd")
_LIMIT_S = 20.0


def etcd_program() -> str:
    """Path of an etcd: the installed one, or Debian's unpacked beside the tests. Skips the test where there is none."""
    installed = shutil.which("etcd")
    if installed:
        return installed
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_CACHE / _IN_PACKAGE).exists():
            _fetch()
    return str(_CACHE / _IN_PACKAGE)


def _fetch() -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"no etcd: it is not installed, and without {tool} Debian's etcd-server can't be had")
    for package in _CACHE.glob("*.deb"):
        package.unlink()
    got = subprocess.run(
        ["apt-get", "download", "etcd-server"], cwd=_CACHE, capture_output=True, text=True, check=False
    )
    packages = list(_CACHE.glob("*.deb"))
    if not packages:
        pytest.skip(f"no etcd: `apt-get download etcd-server` failed: {got.stderr.strip()[-300:]}")
    subprocess.run(["dpkg", "-x", str(packages[0]), str(_CACHE)], check=True)


class EtcdServer:
    """One etcd with a folder of its own; keeps its ports when it is started again."""

    def __init__(
        self,
        folder: Path,
        program: str | None = None,
        tls: tuple[str, str] | None = None,
        client_ca: str | None = None,
        name: str = "default",
    ) -> None:
        self._name = name
        self.cluster: tuple[EtcdServer, ...] = (self,)
        """All members, this one included."""
        self._program = program or etcd_program()
        self._data = folder / "data"
        self._log = folder / "etcd.log"
        self._client_port, self._peer_port = free_port(), free_port()
        self._tls = tls
        self._client_ca = client_ca
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._client_port}"

    @property
    def _peer(self) -> str:
        return f"http://127.0.0.1:{self._peer_port}"

    async def start(self) -> None:
        await self.launch()
        await self._ready()

    async def launch(self) -> None:
        """Without waiting: a member of several is ready only when most of them are."""
        peer = self._peer
        members = ",".join(f"{one._name}={one._peer}" for one in self.cluster)
        command = [
            *(self._program, "--name", self._name, "--data-dir", str(self._data), "--initial-cluster", members),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--unsafe-no-fsync", "--heartbeat-interval", "10", "--election-timeout", "100"),
        ]
        if self._tls:
            command += ["--cert-file", self._tls[0], "--key-file", self._tls[1]]
        if self._client_ca:
            command += ["--client-cert-auth", "--trusted-ca-file", self._client_ca]
        self._process = self._spawn(command)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        # Debian's version asks to be told that arm64 is wanted.
        environ = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"} if os.uname().machine == "aarch64" else None
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environ)

    async def _ready(self) -> None:
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        context: ssl.SSLContext | bool = False
        if self._tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(*self._tls)
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self.url}/health", ssl=context) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                assert self._process is not None
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                assert asyncio.get_running_loop().time() < deadline, self._log.read_text()[-2000:]
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Killed, as by a crash."""
        self._send(signal.SIGCONT)
        self._send(signal.SIGKILL)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def freeze(self) -> None:
        """Its last thread stands still when this returns."""
        assert self._process is not None
        self._send(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    async def wipe(self) -> None:
        """Stopped, with everything that it held gone."""
        await self.stop()
        shutil.rmtree(self._data)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


async def start_cluster(folder: Path, count: int) -> tuple[EtcdServer, ...]:
    """Several that are one etcd."""
    members = []
    for number in range(count):
        (folder / f"m{number}").mkdir()
        members.append(EtcdServer(folder / f"m{number}", name=f"m{number}"))
    for member in members:
        member.cluster = tuple(members)
        await member.launch()
    for member in members:
        await member._ready()
    return tuple(members)
