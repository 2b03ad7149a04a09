"""Parts `tls`, `admin_tls` and `engine_tls`: certificates, and whose are trusted. All files are read again when they
change."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificate to listen with, and what clients have to show."""

    certificate: Annotated[str, Meta(min_length=1, description="PEM file with the certificate and its chain.")]
    key: Annotated[str, Meta(min_length=1, description="PEM file with the private key.")]
    client_ca: Annotated[
        str | None,
        Meta(min_length=1, description="PEM file of the authorities that may sign certificates of clients (mTLS)."),
    ] = None
    client_certificates: Annotated[
        Literal["required", "optional"],
        Meta(description="With `client_ca`: whether a client without a certificate is let in, too."),
    ] = "required"


class EngineTls(msgspec.Struct, frozen=True, kw_only=True):
    """How engines with `https://` URLs are checked, and what they are shown."""

    ca: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="PEM file of the authorities that may sign engines; default: the system's authorities.",
        ),
    ] = None
    server_name: Annotated[
        str | None,
        Meta(
            min_length=1, description="Name that the certificate has to hold and SNI asks for; default: the URL's host."
        ),
    ] = None
    certificate: Annotated[
        str | None, Meta(min_length=1, description="PEM file with the certificate to show to engines (mTLS).")
    ] = None
    key: Annotated[str | None, Meta(min_length=1, description="PEM file with its private key.")] = None

    def __post_init__(self) -> None:
        if self.certificate is not None and self.key is None:
            raise KeyConflictError("certificate", "key is missing: name the PEM file of its private key, too")
        if self.key is not None and self.certificate is None:
            raise KeyConflictError("key", "certificate is missing: name the PEM file that the key belongs to, too")
