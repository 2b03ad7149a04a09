"""Section `auth`: who may ask."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.secret import Secret


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """Who may ask."""

    keys_file: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="File of API keys ([security.md](security.md#api-keys)), read again when it changes; absent: "
            "nobody is asked for a key.",
        ),
    ] = None
    admin_key_env: Annotated[
        str | None,
        Meta(min_length=1, description="Environment variable that holds the key which the admin port asks for."),
    ] = None
    admin_key: Annotated[
        Secret | None, Meta(description="The key itself; `admin_key_env` keeps it out of the file. Never printed.")
    ] = None
    admin_open: Annotated[
        bool, Meta(description="Let the admin port listen beyond loopback although it asks nobody for a key.")
    ] = False

    def __post_init__(self) -> None:
        if self.admin_key is not None and self.admin_key_env is not None:
            raise KeyConflictError("admin_key", "admin_key_env is given too; keep one of them")

    @property
    def has_admin_key(self) -> bool:
        """The admin port asks for a key."""
        return self.admin_key is not None or self.admin_key_env is not None
