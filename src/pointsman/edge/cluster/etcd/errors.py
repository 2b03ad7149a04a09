"""What can go wrong with etcd."""

from __future__ import annotations

from pointsman.core.model.errors import PointsmanError


class EtcdError(PointsmanError):
    """etcd did not do what was asked. The message holds neither values nor passwords."""


class EtcdUnreachableError(EtcdError):
    """No endpoint answered, or none could decide: nobody knows what etcd holds now. Try again later."""


class EtcdRefusedError(EtcdError):
    """It answered that it won't: a wrong password or right, a malformed call. Trying again gives the same."""


class LeaseLostError(EtcdError):
    """The lease is over, and every key that hung on it is gone. Take a new one."""


class CompactedError(EtcdError):
    """What happened since the revision asked for is not kept any more. List anew."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision
        """The oldest one that is kept."""
