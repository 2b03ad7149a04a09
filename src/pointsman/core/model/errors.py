"""The one exception tree. Every message says what is wrong and what to do about it."""

from __future__ import annotations


class PointsmanError(Exception):
    """Root of all errors that pointsman raises on purpose."""


class ConfigError(PointsmanError):
    """A configuration file, flag or environment value can't be used; names the key and, for a file, the line."""


class PolicyError(PointsmanError):
    """A policy is unknown, can't be loaded, or returned a decision that breaks its contract."""


class LedgerError(PointsmanError):
    """An event can't follow what the ledger holds, for example a second finish of one request. State is unchanged."""


class EngineError(PointsmanError):
    """An engine can't be started, identified or used."""


class ModelFileError(PointsmanError):
    """No usable model file was found, or its checksum is wrong."""


class TraceError(PointsmanError):
    """A trace can't be read, made or replayed; names the file and line, or the request."""


class CalibrationError(PointsmanError):
    """Measurements do not say how fast an engine is; names what is missing."""


class PlacementError(PointsmanError):
    """A cluster, topology, gang or placement can't be as described; names the node, pod, gang or role."""
