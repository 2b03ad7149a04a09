"""KvClasses: which workers can pass KV on to each other, as numbers, and how many bytes a token of it has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from pointsman.core.model.kv_shape import KvShape, mismatch
from pointsman.core.model.view import KV_GIVES, KV_PARTS, KV_TAKES
from pointsman.core.model.worker import Role, WorkerSpec
from pointsman.core.timing.profiles import profile, profile_names

_LEARN = 0.25
"""Weight of the last transfer in the bytes of a token."""


@dataclass(slots=True)
class _Class:
    models: frozenset[str]
    """Names that all of its members serve."""
    shapes: Counter[KvShape] = field(default_factory=Counter)
    """What its members tell, without what does not matter between them; and how many tell it."""
    token_bytes: float = 0.0
    """As transfers showed; 0: none did."""


class KvClasses:
    """Each member of a class matches each other one, as far as one knows. Numbers begin at 1 and aren't used twice."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._next = 1

    def joined(self, spec: WorkerSpec) -> int:
        """The class of a worker that is new; 0: it passes no KV on."""
        if spec.kv is None:
            return 0
        shape, models = _told(spec.kv), _models(spec)
        for number, known in self._classes.items():
            common = known.models & models
            if common and all(mismatch(shape, other) is None for other in known.shapes):
                known.models = common
                known.shapes[shape] += 1
                return number
        number = self._next
        self._next += 1
        self._classes[number] = _Class(models, Counter((shape,)))
        return number

    def left(self, number: int, spec: WorkerSpec) -> None:
        """A member of a class is gone, or tells something else now."""
        known = self._classes.get(number)
        if known is None or spec.kv is None:
            return
        shape = _told(spec.kv)
        known.shapes[shape] -= 1
        if not known.shapes[shape]:
            del known.shapes[shape]
        if not known.shapes:
            del self._classes[number]

    def token_bytes(self, number: int) -> int:
        """Bytes of KV a token, as transfers within a class showed; 0: none did."""
        known = self._classes.get(number)
        return 0 if known is None else round(known.token_bytes)

    def moved(self, number: int, tokens: int, size_bytes: int) -> bool:
        """What a transfer within a class was like; True if the bytes of a token are others now."""
        known = self._classes.get(number)
        if known is None or tokens <= 0 or size_bytes <= 0:
            return False
        before = round(known.token_bytes)
        each = size_bytes / tokens
        known.token_bytes = each if not before else known.token_bytes + _LEARN * (each - known.token_bytes)
        return round(known.token_bytes) != before


def kv_sides(spec: WorkerSpec) -> int:
    """What a worker can do with KV of its class, as `Column.KV_SIDES`."""
    kv = spec.kv
    return 0 if kv is None else KV_GIVES * kv.gives + KV_TAKES * kv.takes + KV_PARTS * kv.parts


def profiled_token_bytes(profile_name: str | None) -> int:
    """Bytes of KV a token, of a known profile; 0: it is none."""
    if profile_name is None or profile_name not in profile_names():
        return 0
    return profile(profile_name).kv_bytes_per_token


def why_no_pair(one: WorkerSpec, other: WorkerSpec) -> str | None:
    """Why two workers of one model can't have the prefill of one and the decode of the other; None: they can.

    None, too, where their roles don't ask for it, or where neither passes any KV on.
    """
    if one.kv is None and other.kv is None:
        return None
    refused = None
    for prefill, decode in ((one, other), (other, one)):
        if prefill.role is Role.DECODE or decode.role is Role.PREFILL:
            continue
        if prefill.kv is None or decode.kv is None:
            silent = prefill if prefill.kv is None else decode
            reason: str | None = f"{silent.id} passes no KV on: no hand-shake of it is known"
        else:
            reason = mismatch(prefill.kv, decode.kv)
        if reason is None:
            return None
        refused = refused or reason
    return refused


def _told(kv: KvShape) -> KvShape:
    return replace(kv, gives=True, takes=True, parts=False, port=None)


def _models(spec: WorkerSpec) -> frozenset[str]:
    """A LoRA adapter is no model of its own."""
    return frozenset(spec.models) - frozenset(spec.adapters)
