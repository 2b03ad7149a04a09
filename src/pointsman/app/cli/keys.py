"""`pointsman keys`: make API keys, and check what a file of them says."""

from __future__ import annotations

import datetime
import secrets
import sys
import time
from pathlib import Path

import click
import msgspec

from pointsman.app.cli.output import json_option, write_json
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.key_hash import KeyHash
from pointsman.edge.configuration.keys_file import ApiKey, KeysFile, load_keys
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.moment import Moment
from pointsman.edge.serving.tenants.key_ring import KeyRing

_PREFIX = "pmk-"
_RANDOM_BYTES = 32
_LEAST_CHARACTERS = 20
"""Of a key that was made elsewhere: shorter ones can be guessed, and their hashes reversed."""


class CheckedKey(msgspec.Struct):
    """One key of a file."""

    id: str
    tenant: str
    expires: str | None
    expired: bool
    has_limits: bool


@click.group()
def keys() -> None:
    """API keys: make them, check a file of them (docs/security.md)."""


@keys.command()
@click.option("--tenant", default="default", show_default=True, help="Whose it is; several keys may share one.")
@click.option("--id", "key_id", help="Its name in logs, metrics and status; default: a random one.")
@click.option("--expires", help="A date or time, or from now on: 90d. Default: never.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Take a key that exists from the first line of stdin.")
def make(tenant: str, key_id: str | None, expires: str | None, from_stdin: bool) -> int:
    """Make a key. It is shown once, on stderr, and kept nowhere; the line for the file goes to stdout.

    So `pointsman keys make --tenant acme >> keys.yaml` adds one to a file that begins with `keys:`.
    """
    key = _given() if from_stdin else _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    line = _line(tenant, key_id or secrets.token_hex(4), key, expires)
    if not from_stdin:
        click.echo(f"key, shown only now: {key}", err=True)
    click.echo(line)
    return 0


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--stdin", "from_stdin", is_flag=True, help="Also say which key the first line of stdin is.")
@json_option
def check(file: Path, from_stdin: bool, json_file: str | None) -> int:
    """Read FILE as a front end does, and say whose keys are in it. Ends with 2 where a front end would refuse it."""
    read = load_keys(file)
    if from_stdin:
        return _find(read, _first_line())
    now_s = time.time()
    checked = [_checked(key, now_s) for key in read.keys]
    if json_file is not None:
        write_json(checked, json_file)
        return 0
    for key in checked:
        until = "" if key.expires is None else f", {'EXPIRED' if key.expired else 'expires'} {key.expires}"
        click.echo(f"{key.id}: tenant {key.tenant}{until}{', limits of its own' if key.has_limits else ''}")
    click.echo(f"{file}: {len(checked)} keys, {sum(key.expired for key in checked)} of them expired", err=True)
    return 0


def _line(tenant: str, key_id: str, key: str, expires: str | None) -> str:
    """The entry of a key, checked as the file will be. Raises ConfigError."""
    until = "" if expires is None else f", expires: {_expiry(expires)}"
    line = f"- {{id: '{key_id}', tenant: '{tenant}', sha256: {KeyHash.of(key.encode()).hex()}{until}}}"
    load_text(f"keys:\n{line}\n", "--id and --tenant", KeysFile)
    return line


def _expiry(text: str) -> Moment:
    try:
        return Moment(float(int(time.time() + Duration.parse(text).s)))
    except ValueError:
        try:
            moment = Moment.parse(text)
        except ValueError as error:
            raise ConfigError(f"--expires {text}: expected {error}, or a duration from now on such as 90d") from None
    if moment.epoch_s <= time.time():
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
        raise ConfigError(f"--expires {text}: is over already (it is {now})")
    return moment


def _given() -> str:
    key = _first_line()
    if len(key) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"stdin: the key has {len(key)} characters; shorter than {_LEAST_CHARACTERS} can be guessed from its hash"
        )
    return key


def _first_line() -> str:
    key = sys.stdin.readline().strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("stdin: expected a key on the first line, printable ASCII text")
    return key


def _find(read: KeysFile, key: str) -> int:
    found = KeyRing(read.keys).find(key.encode())
    if found is None:
        raise ConfigError("the key on stdin is not in the file")
    ended = found.expires_s is not None and found.expires_s <= time.time()
    click.echo(f"{found.principal.key_id}: tenant {found.principal.tenant}{', EXPIRED' if ended else ''}")
    return 2 if ended else 0


def _checked(key: ApiKey, now_s: float) -> CheckedKey:
    return CheckedKey(
        key.id,
        key.tenant,
        None if key.expires is None else str(key.expires),
        key.expires is not None and key.expires.epoch_s <= now_s,
        key.limits is not None,
    )
