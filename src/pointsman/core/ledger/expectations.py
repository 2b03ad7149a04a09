"""Expectations: what requests were like so far, and so what the next one will be like: tokens, lengths, arrivals."""

from __future__ import annotations

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.adapters import AdapterLoads
from pointsman.core.ledger.arrivals import Arrivals
from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.output_lengths import ExpectedLength, OutputLengths
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.ledger.token_ratio import TokenRatio
from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request


class Expectations:
    """Owned by the ledger. Kept for models that somebody serves only, so that clients can't make it grow."""

    def __init__(self, fleet: Fleet, times: StepTimes | None) -> None:
        self._fleet = fleet
        self._times = times
        self._lengths = OutputLengths()
        self._adapter_loads = AdapterLoads()
        self._ratios: dict[str, TokenRatio] = {}
        self._arrivals: dict[str, Arrivals] = {}

    def outlook(self, request: Request) -> Outlook:
        """What is expected of a request."""
        expected = self.expected(request)
        reuse = self._fleet.reuse(request.model)
        return Outlook(
            output_tokens=expected.tokens(request.max_output_tokens),
            answers_seen=expected.answers_seen,
            reuse=0.0 if reuse is None else reuse.share,
            evictions_seen=0.0 if reuse is None else reuse.seen,
            found_tokens=0.0 if reuse is None else reuse.found_tokens,
            computed_tokens=0.0 if reuse is None else reuse.computed_tokens,
            arrivals_per_s=arrivals.per_s if (arrivals := self._arrivals.get(request.model)) else 0.0,
            adapter_load_ms=self._adapter_loads.load_ms,
        )

    def expected(self, request: Request) -> ExpectedLength:
        """How long one answer to it may be."""
        return self._lengths.expected(request.model, request.tenant, request.api)

    def came(self, model: str, at_ms: float, count: int = 1) -> None:
        """So many requests for a model came."""
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            if not self._fleet.serves(model):
                return
            arrivals = self._arrivals[model] = Arrivals()
        arrivals.came(at_ms, count)

    def learn_ratio(self, request: Request, prompt_tokens: int | None) -> None:
        """Bytes a token, where its prompt was not tokenized and the engine told how many tokens it had."""
        if prompt_tokens is not None and request.blocks.unit == "bytes":
            self.ratio(request.model).observe(request.blocks.length, prompt_tokens)

    def learn_length(self, flight: Flight, entry: WorkerEntry, event: ev.Finished) -> None:
        """Of an answer to its end: of one that a limit cut off it is known only that it would have been longer."""
        request, output_tokens = flight.admitted, event.output_tokens
        if not output_tokens or flight.expected is None:
            return
        each = output_tokens / request.sequences
        limit, context = request.max_output_tokens, entry.spec.max_context_tokens
        cut_off = (limit is not None and each >= limit) or (
            context is not None and event.prompt_tokens is not None and event.prompt_tokens + each >= context
        )
        self._lengths.ended(request.model, request.tenant, request.api, each, cut_off=cut_off)

    def learn_adapter_load(self, flight: Flight, entry: WorkerEntry, at_ms: float) -> None:
        """How much later its first token came where the adapter was missing."""
        if flight.adapter_missing is None or not flight.request.streamed:
            return
        late_ms = at_ms - flight.dispatched_ms
        times = None if self._times is None else self._times.timing.get(entry.id)
        if times is not None:
            late_ms -= times.overhead_ms + times.step.a_ms
            late_ms -= times.step.d_ms_per_prefill_token * flight.prefill_tokens
        self._adapter_loads.first_token(late_ms, missing=flight.adapter_missing)

    def mean_bytes_per_token(self, entry: WorkerEntry) -> float:
        """Over the models of a worker."""
        ratios = [self.ratio(model).bytes_per_token for model in entry.spec.models] or [TokenRatio().bytes_per_token]
        return sum(ratios) / len(ratios)

    def ratio(self, model: str) -> TokenRatio:
        """Of a model."""
        ratio = self._ratios.get(model)
        if ratio is None:
            ratio = TokenRatio()
            if self._fleet.serves(model):
                self._ratios[model] = ratio
        return ratio

    def bytes_per_token(self) -> dict[str, float]:
        """By model, of those that something is known of."""
        return {model: ratio.bytes_per_token for model, ratio in self._ratios.items()}
