"""Secret: a value that must never be printed."""

from __future__ import annotations

from typing import ClassVar, final


@final
class Secret:
    """Text that shows as `***` wherever it is printed; `reveal()` gives the text itself."""

    __slots__ = ("_text",)

    expected: ClassVar[str] = "text that is not empty"

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def parse(cls, value: object) -> Secret:
        """Take a text. Raises ValueError if it is none, or empty; the message doesn't repeat it."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError(cls.expected)
        return cls(value.strip())

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "***"
