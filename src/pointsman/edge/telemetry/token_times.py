"""The mean time between tokens, the same in metrics, records of decisions and rollouts."""

from __future__ import annotations


def mean_itl_ms(
    first_ms: float | None, last_ms: float | None, tokens: int | None, events: int, sequences: int = 1
) -> float | None:
    """By the tokens that the engine counted, as pieces of a stream may hold several or none; else by its pieces.

    Args:
        first_ms: when the first piece came; None: nothing did, or the answer was not streamed.
        tokens: of all `sequences` together; None: the engine did not say.
        events: pieces of the stream.

    None where there are fewer than two.
    """
    if first_ms is None or last_ms is None:
        return None
    steps = (tokens or events) / sequences - 1
    return (last_ms - first_ms) / steps if steps >= 1 else None
