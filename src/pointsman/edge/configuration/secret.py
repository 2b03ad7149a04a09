"""Secret: a value that must never be printed, and that a header can hold."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import ClassVar, final

from pointsman.core.model.errors import ConfigError

_AROUND = " \t\r\n"
"""White space around a key is an accident of files and shells."""


@final
class Secret:
    """Text that shows as `***` wherever it is printed; `reveal()` gives the text itself."""

    __slots__ = ("_text",)

    expected: ClassVar[str] = "text that is not empty"

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def parse(cls, value: object) -> Secret:
        """Take a text, without white space around it. Raises ValueError, which doesn't repeat it.

        Refused is what an `Authorization` header can't hold, or what servers read in different ways: line breaks, other
        control characters, and what is not ASCII.
        """
        if not isinstance(value, str) or not value.strip(_AROUND):
            raise ValueError(cls.expected)
        text = value.strip(_AROUND)
        for position, character in enumerate(text, 1):
            if not (character.isascii() and character.isprintable()):
                raise ValueError(f"printable ASCII text; character {position} is {_kind(character)}")
        return cls(text)

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "***"


def secret_of_environment(variable: str, environ: Mapping[str, str], key: str) -> Secret:
    """The secret in the variable that `key` of the configuration names.

    Raises ConfigError that names the variable and never holds its value.
    """
    if not environ.get(variable, "").strip(_AROUND):
        raise ConfigError(f"environment variable {variable} is not set, or empty; export it or remove {key}")
    try:
        return Secret.parse(environ[variable])
    except ValueError as error:
        raise ConfigError(f"environment variable {variable}: expected {error}; export it anew") from None


def _kind(character: str) -> str:
    if character in "\r\n":
        return "a line break"
    return "a control character" if unicodedata.category(character) == "Cc" else "not ASCII"
