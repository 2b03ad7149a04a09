"""Answers that break off in the middle, because that fault was asked for."""

from __future__ import annotations

from pointsman.edge.engines.openai_server.generation import Choice, Generation
from pointsman.edge.engines.openai_server.json_texts import JsonTexts
from pointsman.edge.engines.openai_server.sampling import Chosen
from pointsman.edge.engines.openai_server.stream_output import StreamOutput
from pointsman.edge.engines.openai_server.whole_output import WholeOutput
from pointsman.edge.engines.sim.faults import StreamFaults
from pointsman.edge.wire.http1_responder import Responder


class BreakingStream(StreamOutput):
    """Ends with an error event, with a cut connection, or without `[DONE]`."""

    def __init__(self, generation: Generation, responder: Responder, texts: JsonTexts, faults: StreamFaults) -> None:
        super().__init__(generation, responder, texts)
        self._faults = faults
        self._pieces = 0

    def piece(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> None:
        """Write one token of a choice, if it is before the break."""
        if not self.responder.started:
            self.start()
        if self._pieces >= self._faults.after_tokens:
            self._break()
            return
        self._pieces += 1
        super().piece(choice, text, token, chosen)
        if self._pieces >= self._faults.after_tokens:
            self._break()

    def end(self, *, done: bool = True) -> None:
        """End the stream, with `[DONE]` or without."""
        super().end(done=done and not self._faults.no_done)

    def _break(self) -> None:
        if self.generation.done.done():
            return
        if self._faults.error_event:
            self.fail(500, self._faults.message)
            self.generation.complete()
        else:
            self.responder.flush_head()
            self.generation.cut()


class BreakingWhole(WholeOutput):
    """Ends with an error, or with a cut connection."""

    def __init__(self, generation: Generation, responder: Responder, faults: StreamFaults) -> None:
        super().__init__(generation, responder)
        self._faults = faults
        self._pieces = 0

    def piece(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> None:
        """Keep one token of a choice."""
        self._pieces += 1
        super().piece(choice, text, token, chosen)
        if self._pieces < self._faults.after_tokens or self.generation.done.done():
            return
        if self._faults.error_event:
            self.fail(500, self._faults.message)
            self.generation.complete()
        else:
            self.generation.cut()
