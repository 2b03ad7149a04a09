"""A bound on what one rendering of a chat template may cost: steps, characters, and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Sized

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

METER = "__pointsman_meter__"
"""Name of the meter among a template's variables; no template can spell it by accident."""
_LOOP = "pointsman_metered_loop"
_JOIN = "pointsman_metered_join"
_MANY_STEPS = 1 << 30
_STEPS_PER_CLOCK_READ = 512
_SHORT = 4096
"""Results of `+` up to here are not told to the meter."""


class OverBudget(Exception):  # noqa: N818
    """The rendering was stopped."""


class Meter:
    """Counts one rendering. Loop passes and calls are steps."""

    __slots__ = ("_clock", "_deadline_s", "_next_clock_read", "max_characters", "steps_left")

    def __init__(
        self,
        max_steps: int,
        max_characters: int,
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps_left = max_steps
        self.max_characters = max_characters
        self._deadline_s = deadline_s
        self._clock = clock
        self._next_clock_read = max_steps

    def steps(self, count: int) -> None:
        """Raises OverBudget when there were too many, or time is over."""
        self.steps_left -= count
        if self.steps_left < 0:
            raise OverBudget("the chat template takes too many steps")
        if self._deadline_s is not None and self.steps_left < self._next_clock_read:
            self._next_clock_read = self.steps_left - _STEPS_PER_CLOCK_READ
            if self._clock() > self._deadline_s:
                raise OverBudget("the chat template takes too long")

    def characters(self, count: int) -> None:
        """Raises OverBudget for a text that is too long."""
        if count > self.max_characters:
            raise OverBudget(f"the chat template makes more than {self.max_characters} characters")


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, where loops, calls, and the operators that make strings grow are told to the meter."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Check the size of a result before it is made where it can be huge, otherwise after."""
        if operator == "+":  # the one that templates use all the time
            result: object = super().call_binop(context, operator, left, right)
            if isinstance(result, str | list) and len(result) > _SHORT:
                _meter(context).characters(len(result))
            return result
        meter = _meter(context)
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, Sized) and isinstance(times, int):
                    meter.characters(len(text) * times)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.characters(left.bit_length() * right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list):
            meter.characters(len(result))
        return result

    def call(self, context: Context, called: object, /, *args: object, **kwargs: object) -> object:
        """A call is a step."""
        _meter(context).steps(1)
        return super().call(context, called, *args, **kwargs)


class MeteredCodeGenerator(CodeGenerator):
    """Lets each loop and each `~` pass through a filter that tells the meter."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        """Rewrites the tree before the code is made from it."""
        for loop in list(node.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, _LOOP)
        for concat in list(node.find_all(nodes.Concat)):
            concat.nodes = [_filtered(nodes.List(concat.nodes, lineno=concat.lineno), _JOIN)]
        super().visit_Template(node, frame)


MeteredEnvironment.code_generator_class = MeteredCodeGenerator


def metering_filters() -> dict[str, Callable[..., object]]:
    """Filters that an environment needs for MeteredCodeGenerator."""
    return {_LOOP: _metered_loop, _JOIN: _metered_join}


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


@pass_context
def _metered_loop(context: Context, items: Iterable[object]) -> Iterable[object]:
    if not isinstance(items, Sized):
        # A generator: of a filter over something finite, or of nothing that ends. Its passes are counted as they come.
        return _counted(_meter(context), items)
    _meter(context).steps(len(items) + 1)
    return items


def _counted(meter: Meter, items: Iterable[object]) -> list[object]:
    counted = []
    for item in items:
        meter.steps(1)
        counted.append(item)
    return counted


@pass_context
def _metered_join(context: Context, parts: Sequence[object]) -> str:
    texts = [str(part) for part in parts]
    _meter(context).characters(sum(map(len, texts)))
    return "".join(texts)


def _meter(context: Context) -> Meter:
    meter = context.parent.get(METER)
    return meter if isinstance(meter, Meter) else Meter(_MANY_STEPS, _MANY_STEPS)
