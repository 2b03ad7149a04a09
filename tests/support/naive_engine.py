"""One engine the long way: every block an object, every step computed alone, nothing remembered between steps.

What EngineModel and the simulator do in other, faster ways has to come to the same times. Written from the description
of continuous batching, and shares nothing with them but the formula of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pointsman.core.timing.step import StepCoefficients


@dataclass(eq=False)
class Block:
    """One KV block."""

    key: int | None = None
    """Hash of its content, once it is full and has one."""
    users: int = 0


@dataclass(eq=False)
class Answer:
    """One request and what became of it."""

    at_ms: float
    prompt: int
    length: int
    target: int
    keys: Sequence[int]
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    cached: int | None = None
    first_ms: float | None = None
    last_ms: float = 0.0


class NaiveEngine:
    """Runs answers to their end; read `intervals_ms`, `busy_ms` and `preemptions` after that."""

    def __init__(self, step: StepCoefficients, blocks: int, size: int, places: int, budget: int) -> None:
        self.step, self.size, self.places, self.budget = step, size, places, budget
        self.free = [Block() for _ in range(blocks)]
        """Least recently used first."""
        self.cache: dict[int, list[Block]] = {}
        self.waiting: list[Answer] = []
        self.running: list[Answer] = []
        self.plan: list[tuple[Answer, int]] = []
        self.intervals_ms: list[float] = []
        self.busy_ms = 0.0
        self.preemptions = 0

    def run(self, answers: Sequence[Answer]) -> None:
        """In the order of their times."""
        coming = list(answers)
        now_ms = 0.0
        while coming or self.waiting or self.running:
            while coming and coming[0].at_ms <= now_ms:
                self.waiting.append(coming.pop(0))
            self.choose()
            if not self.plan:
                now_ms = coming[0].at_ms
                continue
            step_ms = self.step_ms()
            self.busy_ms += step_ms
            now_ms += step_ms
            while coming and coming[0].at_ms < now_ms:
                self.waiting.append(coming.pop(0))
            self.computed(now_ms)

    def choose(self) -> None:
        self.plan = []
        budget, before = self.budget, self.preemptions
        for answer in list(self.running):
            if answer not in self.running:
                continue
            count = min(answer.length - answer.computed, budget)
            missing = self.blocks_of(answer.computed + count) - len(answer.blocks)
            while answer in self.running and missing > len(self.free):
                self.preempt(self.running[-1])
            if answer in self.running:
                self.put(answer, count, missing)
                budget -= count
        if self.preemptions == before or not self.plan:
            self.admit(budget)

    def admit(self, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self.places:
            answer = self.waiting[0]
            hits: list[Block] = []
            for key in answer.keys[: (answer.length - 1) // self.size]:
                if key not in self.cache:
                    break
                hits.append(self.cache[key][0])
            computed = len(hits) * self.size
            count = min(answer.length - computed, budget)
            missing = self.blocks_of(computed + count) - len(hits)
            if missing > len(self.free) - sum(not block.users for block in hits):
                return
            for block in hits:
                if not block.users:
                    self.free.remove(block)
                block.users += 1
            answer.blocks, answer.computed = hits, computed
            if answer.cached is None:
                answer.cached = computed
            self.running.append(self.waiting.pop(0))
            self.put(answer, count, missing)
            budget -= count

    def put(self, answer: Answer, count: int, missing: int) -> None:
        for _ in range(missing):
            block = self.free.pop(0)
            if block.key is not None:
                self.cache[block.key].remove(block)
                if not self.cache[block.key]:
                    del self.cache[block.key]
            block.key, block.users = None, 1
            answer.blocks.append(block)
        full = min((answer.computed + count) // self.size, len(answer.keys))
        for block, key in zip(answer.blocks[:full], answer.keys[:full], strict=True):
            if block.key is None:
                block.key = key
                self.cache.setdefault(key, []).append(block)
        self.plan.append((answer, count))

    def release(self, answer: Answer) -> None:
        for block in reversed(answer.blocks):
            block.users -= 1
            if not block.users:
                self.free.append(block)
        answer.blocks = []

    def preempt(self, answer: Answer) -> None:
        self.running.remove(answer)
        self.plan = [(other, count) for other, count in self.plan if other is not answer]
        self.release(answer)
        answer.computed = 0
        self.waiting.insert(0, answer)
        self.preemptions += 1

    def step_ms(self) -> float:
        decodes = context = tokens = squares = 0
        for answer, count in self.plan:
            if count == 1 and answer.computed >= answer.prompt:
                decodes += 1
                context += answer.computed + 1
            else:
                tokens += count
                squares += (answer.computed + count) ** 2 - answer.computed**2
        return self.step.step_ms(decodes, context, tokens, squares)

    def computed(self, now_ms: float) -> None:
        for answer, count in self.plan:
            answer.computed += count
            if answer.computed < answer.length:
                continue
            answer.length += 1
            if answer.first_ms is None:
                answer.first_ms = now_ms
            else:
                self.intervals_ms.append(now_ms - answer.last_ms)
            answer.last_ms = now_ms
            if answer.length == answer.target:
                self.running.remove(answer)
                self.release(answer)

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.size)
