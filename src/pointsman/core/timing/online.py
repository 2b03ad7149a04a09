"""Step times learned from traffic: coefficients of each class of workers times a factor of each worker.

A class is workers that should be alike: same GPU, model, engine, parallelism. They learn one set of coefficients
together; a worker that is slower than its like (heat, a noisy neighbour) shows as a factor above 1, and the class
stays. What all workers of a class share moves into the coefficients again.

Classes that are the same engines in other roles are a family: what one of them never computed is taken from another
one (`core/timing/borrowed.py`), so that workers that only decode are known to take some time for prompts.

After a join the first intervals that take far longer than predicted are set aside: they are compilation or loading, or
the truth, which only repetition can tell. Three in a row that agree are the truth, and so are eight that do not: where
a prior is wrong by another factor for prompts than for tokens, no three of a mixture need agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.borrowed import borrow
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.regression import StepRegression
from pointsman.core.timing.spread import PredictionError, Spread
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes

_FAR = 2.0
"""Times longer than predicted at which a young worker's interval is set aside."""
_YOUNG = 8.0
"""Intervals after which a worker is no longer young."""
_REPEATS, _MOST_ASIDE = 3, 8
_ALIKE = 1.7
"""Largest over least of the ratios that agree."""
_FACTOR_SD, _FACTOR_DRIFT, _FACTOR_LEAST_SD = 0.15, 0.012, 0.02
"""Of a worker's log factor: at first, what each interval adds, and what no number of intervals takes away."""
_FACTOR_PULL = 2.5
"""Deviations beyond which an interval moves the factor no further."""
_SHIFTED = 5.0
"""Weight of intervals in a row, all off to one side by more than three deviations, that says that something changed."""
_ANCHOR = 0.1
"""Share of what the workers of a class have in common that moves into its coefficients, each interval."""
_ANCHORED_TOGETHER = 32
"""Workers of a class: of twice as many it moves with every second interval, and so on, so much the further."""
_LENDS_ALWAYS, _LENDS_EVERY = 8.0, 8
"""Intervals up to which a class with a family tells it of each; later of one in so many."""
_STEP_P90, _TTFT_P90 = 1.25, 2.0
"""Actual over predicted, before anything is known."""


@dataclass(slots=True)
class _Worker:
    """What is known of one worker beside its class."""

    class_name: str
    log_factor: float = 0.0
    variance: float = _FACTOR_SD**2
    weight: float = 0.0
    aside: list[Interval] = field(default_factory=list)
    run: float = 0.0
    """Weight of the intervals in a row that were off to one side; negative = faster than predicted."""
    steps: Spread = field(default_factory=lambda: Spread(_STEP_P90))
    first_tokens: Spread = field(default_factory=lambda: Spread(_TTFT_P90))


class LearnedTimes:
    """Step times of a fleet. Pure: no clock, no chance; same intervals in, same times out.

    Args:
        priors: what is thought of a class before anything is seen of it.
        default: the prior of a class that `priors` lacks.
        memory: intervals (of a class) after which one counts a third.
    """

    def __init__(
        self, priors: Mapping[str, StepCoefficients], *, default: StepCoefficients | None = None, memory: float = 300.0
    ) -> None:
        self._priors = dict(priors)
        self._default = default
        self._memory = memory
        self._classes: dict[str, StepRegression] = {}
        self._workers: dict[str, _Worker] = {}
        self._members: dict[str, dict[str, _Worker]] = {}
        self._not_anchored: dict[str, int] = {}
        """Intervals of a class since what its workers have in common moved."""
        self._families: dict[str, set[str]] = {}
        """Class → its family, of which all members share one set."""

    def relate(self, class_name: str, family: str) -> None:
        """A class is the same engines as all those of its family, in another role. `family`: the name of one of it."""
        if class_name == family or self._families.get(family, set()) & {class_name}:
            return
        members = self._families.setdefault(family, {family})
        members.add(class_name)
        self._families[class_name] = members
        self._lend(class_name)

    def believe(self, class_name: str, prior: StepCoefficients) -> None:
        """What is thought of a class of which nothing was seen. A class that learned already keeps what it learned."""
        self._priors.setdefault(class_name, prior)

    def knows(self, class_name: str) -> bool:
        """Whether workers of that class can join."""
        return self._default is not None or class_name in self._priors

    def joined(self, worker: str, class_name: str) -> None:
        """A worker is there, or there again after a restart: it is young. Raises ConfigError without a prior for it."""
        self._class(class_name)
        self.left(worker)
        known = self._workers[worker] = _Worker(class_name)
        self._members[class_name][worker] = known

    def left(self, worker: str) -> None:
        """A worker is gone; its class keeps what it taught."""
        known = self._workers.pop(worker, None)
        if known is not None:
            del self._members[known.class_name][worker]

    def observe(self, worker: str, class_name: str, interval: Interval) -> None:
        """Learn from one interval of a worker, which joins its class if it had not."""
        known = self._workers.get(worker)
        if known is None or known.class_name != class_name:
            self.joined(worker, class_name)
            known = self._workers[worker]
        regression = self._classes[class_name]
        predicted_ms = regression.predicted_ms(interval) * math.exp(known.log_factor)
        ratio = interval.elapsed_ms / max(predicted_ms, 1e-6)
        if known.weight < _YOUNG and ratio > _FAR:
            self._set_aside(known, regression, interval)
            return
        known.aside.clear()
        known.steps.observe(predicted_ms, interval.elapsed_ms)
        self._learn(known, regression, interval)

    def observe_first_token(self, worker: str, predicted_ms: float, actual_ms: float) -> None:
        """A request's time to the first token, and what was predicted for it. Nothing for unknown workers."""
        known = self._workers.get(worker)
        if known is not None:
            known.first_tokens.observe(predicted_ms, actual_ms)

    # ---- what it answers

    def coefficients(self, worker: str) -> StepCoefficients | None:
        """Class times factor; None for a worker that never joined."""
        known = self._workers.get(worker)
        if known is None:
            return None
        return self._classes[known.class_name].coefficients.scaled(math.exp(known.log_factor))

    def timing(self) -> dict[str, StepCoefficients]:
        """Coefficients of all workers, as policies take them."""
        classes = {name: regression.coefficients for name, regression in self._classes.items()}
        return {
            worker: classes[known.class_name].scaled(math.exp(known.log_factor))
            for worker, known in self._workers.items()
        }

    def class_coefficients(self, class_name: str) -> StepCoefficients:
        """What the workers of a class have in common. Raises ConfigError without a prior for it."""
        return self._class(class_name).coefficients

    def factor(self, worker: str) -> float:
        """How many times as long as its class a worker takes; 1 for an unknown one."""
        known = self._workers.get(worker)
        return 1.0 if known is None else math.exp(known.log_factor)

    def overhead_ms(self, worker: str) -> float:
        """Fixed time of a request on its way to a worker and back; 0 for an unknown one."""
        known = self._workers.get(worker)
        return 0.0 if known is None else self._classes[known.class_name].overhead_ms

    def intervals(self, class_name: str) -> float:
        """Intervals that a class learned from, those that tell the same time together as one."""
        regression = self._classes.get(class_name)
        return 0.0 if regression is None else regression.weight

    def times(self, worker: str) -> WorkerTimes | None:
        """All that is known of a worker's times; None for a worker that never joined."""
        known = self._workers.get(worker)
        if known is None:
            return None
        regression = self._classes[known.class_name]
        step = regression.coefficients.scaled(math.exp(known.log_factor))
        return WorkerTimes(step, regression.overhead_ms, known.steps.ratios, known.first_tokens.ratios)

    def predict_ttft_ms(self, worker: str, load: Load, new_tokens: int, cached_tokens: int = 0) -> float | None:
        """The plain prediction of a prompt's time to the first token, to hand back to `observe_first_token`."""
        coefficients = self.coefficients(worker)
        if coefficients is None:
            return None
        return self.overhead_ms(worker) + ttft_ms(coefficients, load, new_tokens, cached_tokens=cached_tokens)

    def error(self, worker: str) -> PredictionError | None:
        """How far predictions of intervals were off there, each made before the interval was learned."""
        known = self._workers.get(worker)
        return None if known is None else known.steps.error

    def ttft_error(self, worker: str) -> PredictionError | None:
        """How far predictions of first tokens were off."""
        known = self._workers.get(worker)
        return None if known is None else known.first_tokens.error

    # ---- families

    def _lend(self, class_name: str) -> None:
        """Others of its family expect what it found, from now on, and it expects what they did."""
        family = self._families.get(class_name)
        if family is None:
            return
        known = {one: self._classes[one] for one in sorted(family) if one in self._classes}
        for name, regression in known.items():
            borrow(regression, (other for one, other in known.items() if one != name))

    # ---- learning

    def _class(self, name: str) -> StepRegression:
        regression = self._classes.get(name)
        if regression is None:
            prior = self._priors.get(name, self._default)
            if prior is None:
                raise ConfigError(f"no prior step times for workers of class {name!r}: give some, or a default")
            regression = self._classes[name] = StepRegression(prior, self._memory)
            self._members[name] = {}
            self._lend(name)
        return regression

    def _set_aside(self, known: _Worker, regression: StepRegression, interval: Interval) -> None:
        known.aside.append(interval)
        if len(known.aside) < _REPEATS:
            return
        last = known.aside[-_REPEATS:]
        ratios = [one.elapsed_ms / max(regression.predicted_ms(one), 1e-6) for one in last]
        agree = max(ratios) <= _ALIKE * min(ratios)
        if not agree and len(known.aside) < _MOST_ASIDE:
            return
        believed = last if agree else list(known.aside)
        known.aside.clear()
        for one in believed:
            known.steps.observe(regression.predicted_ms(one) * math.exp(known.log_factor), one.elapsed_ms)
            self._learn(known, regression, one)

    def _learn(self, known: _Worker, regression: StepRegression, interval: Interval) -> None:
        members = self._members[known.class_name]
        alone = len(members) == 1
        if alone and known.log_factor:
            # Nobody is left to be slower than.
            regression.rescale(math.exp(known.log_factor))
            known.log_factor = 0.0
        known.variance = min(_FACTOR_SD**2, known.variance + _FACTOR_DRIFT**2 * interval.weight)
        factor_variance = 0.0 if alone else known.variance
        factor = math.exp(known.log_factor)
        error = math.log(interval.elapsed_ms / max(regression.predicted_ms(interval) * factor, 1e-6))
        variance = factor_variance + regression.doubt(interval) ** 2 + regression.noise**2
        deviations = error / math.sqrt(variance)
        self._watch(known, regression, deviations, interval.weight, alone=alone)
        regression.learn(interval, factor=factor, factor_sd=math.sqrt(factor_variance))
        if not alone:
            gain = factor_variance / variance * interval.weight
            known.log_factor += gain * math.sqrt(variance) * min(_FACTOR_PULL, max(-_FACTOR_PULL, deviations))
            known.variance = max(_FACTOR_LEAST_SD**2, known.variance * (1 - gain))
            intervals = self._not_anchored.get(known.class_name, 0) + 1
            anchors = intervals >= len(members) // _ANCHORED_TOGETHER
            self._not_anchored[known.class_name] = 0 if anchors else intervals
            if anchors:
                self._anchor(members, regression, _ANCHOR if intervals == 1 else 1.0 - (1.0 - _ANCHOR) ** intervals)
        known.weight += interval.weight
        if regression.weight < _LENDS_ALWAYS or int(regression.weight) % _LENDS_EVERY == 0:
            self._lend(known.class_name)

    def _watch(
        self, known: _Worker, regression: StepRegression, deviations: float, weight: float, *, alone: bool
    ) -> None:
        """Several intervals in a row off to one side: the worker changed. Believe its factor, or its class, less."""
        if abs(deviations) <= 3:
            known.run = 0.0
            return
        known.run = max(0.0, known.run) + weight if deviations > 0 else min(0.0, known.run) - weight
        if abs(known.run) < _SHIFTED:
            return
        known.run = 0.0
        if alone:
            regression.loosen(0.1)
        else:
            known.variance = _FACTOR_SD**2

    def _anchor(self, members: Mapping[str, _Worker], regression: StepRegression, share: float) -> None:
        """The median factor of a class is 1."""
        grown = [member.log_factor for member in members.values() if member.weight >= 3]
        if len(grown) < 2:
            return
        shift = share * float(np.median(grown))
        if abs(shift) < 1e-4:
            return
        for member in members.values():
            member.log_factor -= shift
        regression.rescale(math.exp(shift))
