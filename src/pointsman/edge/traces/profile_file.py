"""Profiles in files: what `pointsman calibrate` writes and every `--profile` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import ESTIMATE_PREFIX, Profile, Validity, profile, profile_from, profile_names
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.configuration.loader import load_text, read_text

SCHEMA = 1
_SUFFIXES = (".yaml", ".yml", ".json")
_MOST_BYTES = 2**20

# Upper bounds are beyond reason; they keep infinity and slips of many digits out.
NotNegative = Annotated[float, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Name = Annotated[str, Meta(min_length=1)]
ErrorOrUnknown = Annotated[float | None, Meta(ge=0)]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients of `a + b·C + c·Σctx/1000 + d·prefill_tokens + q·Σ(end² − start²)`, in ms."""

    a_ms: NotNegative
    b_ms_per_sequence: NotNegative
    c_ms_per_1000_context_tokens: NotNegative
    d_ms_per_prefill_token: NotNegative
    q_ms_per_square_token: NotNegative = 0.0


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Least and most, both included."""

    least: Positive
    most: Positive


class Valid(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; beyond that the coefficients are a guess."""

    prompt_tokens: Span
    output_tokens: Span
    sequences: Span
    """Side by side."""

    def validity(self) -> Validity:
        """As profiles have it."""
        spans = (self.prompt_tokens, self.output_tokens, self.sequences)
        return Validity(*((span.least, span.most) for span in spans))

    @classmethod
    def of(cls, validity: Validity) -> Valid:
        """From a profile's."""
        spans = (validity.prompt_tokens, validity.output_tokens, validity.sequences)
        prompts, outputs, sequences = (Span(least=max(1, least), most=most) for least, most in spans)
        return cls(prompt_tokens=prompts, output_tokens=outputs, sequences=sequences)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """How the coefficients came about, and what not to use them for."""

    requests: Positive
    scheduling: str = ""
    """What fitted better: `ahead` of the step before, or `between` steps."""
    warnings: tuple[str, ...] = ()


class ProfileFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: a profile, and how it was measured."""

    schema: int
    name: Name
    step: Step
    overhead_ms: NotNegative = 0.0
    """Of each request outside the engine's steps: network, HTTP, tokenizing."""
    kv_tokens: Positive
    kv_bytes_per_token: Positive
    gpu: str = "unknown"
    model: str = "unknown"
    engine: str = "unknown"
    tensor_parallel: Positive = 1
    source: str = ""
    mape: ErrorOrUnknown = None
    """Mean absolute error in percent, on requests that the fit had not seen."""
    valid: Valid | None = None
    measured: Measured | None = None

    def profile(self) -> Profile:
        """What the simulator, the advisor and the simulated engine use of it."""
        return Profile(
            name=self.name,
            step=StepCoefficients(**msgspec.structs.asdict(self.step)),
            kv_tokens=self.kv_tokens,
            kv_bytes_per_token=self.kv_bytes_per_token,
            gpu=self.gpu,
            model=self.model,
            engine=self.engine,
            tensor_parallel=self.tensor_parallel,
            source=self.source,
            mape=self.mape,
            valid=None if self.valid is None else self.valid.validity(),
            overhead_ms=self.overhead_ms,
        )


def load_profile(text: str) -> Profile:
    """The profile that a `--profile` means: a name of the table, an estimate or a file. Raises ConfigError."""
    if text in profile_names() or text.startswith(ESTIMATE_PREFIX):
        return profile_from(text)
    path = Path(text)
    if path.suffix in _SUFFIXES or path.is_file():
        return read_profile_file(path).profile()
    try:
        return profile(text)
    except ConfigError as error:
        raise ConfigError(f"{error}; or a file that `pointsman calibrate` wrote, ending in {_SUFFIXES[0]}") from None


def read_profile_file(path: Path) -> ProfileFile:
    """Read a file. Raises ConfigError that names the file, the line and the key."""
    text = read_text(path, "a profile", _MOST_BYTES)
    found = load_text(text, str(path), ProfileFile)
    if found.schema != SCHEMA:
        raise ConfigError(
            f"{path}: schema {found.schema} is not one that this version reads (it reads {SCHEMA}); "
            "write the file anew with `pointsman calibrate`"
        )
    if found.valid is not None:
        for key, span in msgspec.structs.asdict(found.valid).items():
            if span.least > span.most:
                raise ConfigError(f"{path}: valid.{key}: least is {span.least}, more than most, {span.most}")
    return found


def write_profile_file(path: Path, content: ProfileFile) -> None:
    """Write a file as YAML. Raises ConfigError if it can't be written."""
    text = msgspec.yaml.encode(_without_none(msgspec.to_builtins(content)))
    try:
        path.write_bytes(b"# Written by `pointsman calibrate`; use it with --profile FILE.\n" + text)
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from None


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
