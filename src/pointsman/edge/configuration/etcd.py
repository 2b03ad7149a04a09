"""Section `etcd`: where an etcd is, and how to be let in."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.secret import Secret

FLEET_PATTERN = "^[A-Za-z0-9._-]+$"
DEFAULT_FLEET = "default"


class EtcdUrl(EngineUrl):
    """Base URL of the client port of one etcd."""

    __slots__ = ()

    expected: ClassVar[str] = "the base URL of etcd's client port, such as http://10.0.0.1:2379"


class Etcd(msgspec.Struct, frozen=True, kw_only=True):
    """An etcd from version 3.4 on. Nothing needs one until another section says so."""

    endpoints: Annotated[
        tuple[EtcdUrl, ...], Meta(description="Client ports of its members; the first that answers is used.")
    ] = ()
    fleet: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            pattern=FLEET_PATTERN,
            description="Name of this fleet: its keys begin with `/pointsman/FLEET/`. Front ends of another one are "
            "not heard, with or without etcd.",
        ),
    ] = DEFAULT_FLEET
    user: Annotated[str | None, Meta(min_length=1, description="User, where etcd wants one.")] = None
    password_env: Annotated[
        str | None, Meta(min_length=1, description="Environment variable that holds the user's password.")
    ] = None
    password: Annotated[
        Secret | None, Meta(description="The password itself; `password_env` keeps it out of the file.")
    ] = None
    ca: Annotated[
        str | None,
        Meta(min_length=1, description="PEM file of the authorities that may sign it; absent: the system's."),
    ] = None
    certificate: Annotated[
        str | None, Meta(min_length=1, description="PEM file with the certificate to show it, where it wants one.")
    ] = None
    key: Annotated[str | None, Meta(min_length=1, description="PEM file with the key of `certificate`.")] = None
    timeout: Annotated[Duration, Meta(description="For one member to answer before the next is asked.")] = Duration(3)

    def __post_init__(self) -> None:
        if self.password is not None and self.password_env is not None:
            raise KeyConflictError("password", "password_env is given too; keep one of them")
        if (self.password is not None or self.password_env is not None) and self.user is None:
            raise KeyConflictError("user", "is missing; the password is whose?")
        if self.user is not None and self.password is None and self.password_env is None:
            raise KeyConflictError("user", "has no password; name its variable in password_env")
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise KeyConflictError(missing, "is missing; certificate and key belong together")
