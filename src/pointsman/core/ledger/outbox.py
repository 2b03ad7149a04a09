"""Outbox: what other front ends have not been told yet of our requests. The request path only writes down names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pointsman.core.model.replica import PromptTold
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.worker import WorkerId

MOST_KEYS_A_PROMPT = 4_096
"""Leading blocks of a longer prompt are told, the others not: 128 thousand tokens by text, 64 thousand by tokens."""
MOST_KEYS = 65_536
"""Blocks that wait to be told; prompts beyond are not told."""


class Outbox:
    """Filled by the ledger, emptied by `take`. `wake` is called when something is in it that was not before."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._woken = False
        self._workers: set[WorkerId] = set()
        self._prompts: list[PromptTold] = []
        self._arrivals: dict[str, int] = {}
        self._keys = 0
        self.prompts_not_told = 0
        """Too many waited: others know nothing of what these left in caches."""

    def came(self, model: str) -> None:
        """A request was admitted."""
        self._arrivals[model] = self._arrivals.get(model, 0) + 1
        self._something()

    def changed(self, worker: WorkerId) -> None:
        """What we have at a worker changed."""
        self._workers.add(worker)
        if not self._woken:
            self._something()

    def sent(
        self,
        worker: WorkerId,
        request: Request,
        token_keys: Sequence[int],
        spec: KeySpec | None,
        *,
        by_text: bool,
    ) -> None:
        """A prompt went to a worker. `token_keys`: those it did not say it holds; `by_text`: tell its text, too."""
        text = request.blocks.keys[:MOST_KEYS_A_PROMPT] if by_text else ()
        self._add(PromptTold(worker, request.model, text, token_keys[:MOST_KEYS_A_PROMPT], spec))

    def taken_back(
        self,
        worker: WorkerId,
        request: Request,
        text_keys: Sequence[int],
        token_keys: Sequence[int],
        spec: KeySpec | None,
    ) -> None:
        """It did not get there; these of its blocks nobody else of ours sent."""
        text, tokens = text_keys[:MOST_KEYS_A_PROMPT], token_keys[:MOST_KEYS_A_PROMPT]
        if text or tokens:
            self._add(PromptTold(worker, request.model, text, tokens, spec, taken_back=True))

    def take(self) -> tuple[Collection[WorkerId], Sequence[PromptTold], dict[str, int]]:
        """Workers where something changed, prompts, arrivals; from now on they are told."""
        taken = self._workers, self._prompts, self._arrivals
        self._workers, self._prompts, self._arrivals = set(), [], {}
        self._keys = 0
        self._woken = False
        return taken

    def _add(self, prompt: PromptTold) -> None:
        keys = len(prompt.text_keys) + len(prompt.token_keys)
        if not keys:
            return
        if self._keys + keys > MOST_KEYS:
            self.prompts_not_told += 1
            return
        self._keys += keys
        self._prompts.append(prompt)

    def _something(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()
