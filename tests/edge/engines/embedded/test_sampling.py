from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.engines.embedded.sampling import Sampling, choose, likeliest, log_softmax

LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))


def drawn(sampling: dict[str, object], draws: int = 400, logits=LOGITS) -> dict[int, float]:
    """Token → share of draws at as many positions."""
    counts = np.zeros(len(logits))
    for position in range(draws):
        counts[choose(logits, Sampling(**sampling), [0] * position, []).token] += 1
    return {token: count / draws for token, count in enumerate(counts) if count}


def test_tokens_are_drawn_as_likely_as_they_are() -> None:
    shares = drawn({"seed": 3}, 4_000)
    for token, share in enumerate(np.exp(LOGITS)):
        assert abs(shares[token] - share) < 0.03


def test_temperature_sharpens_and_flattens() -> None:
    assert choose(LOGITS, Sampling(temperature=0.0), [], []).token == 0
    assert drawn({"temperature": 0.3})[0] > 0.85
    assert drawn({"temperature": 5.0})[0] < 0.35


def test_filters_leave_the_likeliest() -> None:
    assert set(drawn({"top_k": 2})) == {0, 1}
    assert set(drawn({"top_p": 0.7})) == {0, 1}
    assert set(drawn({"top_p": 0.75})) == {0, 1}
    assert set(drawn({"top_p": 0.76})) == {0, 1, 2}
    assert set(drawn({"min_p": 0.24})) == {0, 1, 2}
    assert set(drawn({"top_p": 1e-9})) == {0}
    assert set(drawn({"top_k": 100})) == {0, 1, 2, 3, 4}


@given(
    values=st.lists(st.sampled_from([-math.inf, -2.0, -1.0, -0.5, 0.0]), min_size=1, max_size=12),
    count=st.integers(0, 14),
)
def test_of_tokens_that_are_equally_likely_those_with_the_lower_id_come_first(values: list[float], count: int) -> None:
    found = likeliest(np.array(values), count)
    assert list(found) == sorted(enumerate(values), key=lambda one: (-one[1], one[0]))[:count]


@given(seed=st.integers(0, 2**64), tokens=st.lists(st.integers(0, 4), min_size=1, max_size=30), cut=st.integers(0, 30))
def test_an_answer_that_goes_on_elsewhere_draws_the_same(seed: int, tokens: list[int], cut: int) -> None:
    sampling = Sampling(seed=seed)
    prompt, answer = tokens[:cut], tokens[cut:]
    assert choose(LOGITS, sampling, prompt, answer) == choose(LOGITS, sampling, [], tokens)


def test_other_seeds_draw_other_tokens() -> None:
    def answer(seed: int) -> list[int]:
        return [choose(LOGITS, Sampling(seed=seed), [0] * n, []).token for n in range(30)]

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_penalties_and_bias() -> None:
    greedy = {"temperature": 0.0}
    assert choose(LOGITS, Sampling(**greedy, presence_penalty=1.0), [0], [1]).token == 0, "not of the prompt"
    assert choose(LOGITS, Sampling(**greedy, presence_penalty=1.0), [], [0]).token == 1
    assert choose(LOGITS, Sampling(**greedy, frequency_penalty=0.4), [], [0]).token == 0
    assert choose(LOGITS, Sampling(**greedy, frequency_penalty=0.4), [], [0, 0]).token == 1
    assert choose(LOGITS, Sampling(**greedy, repetition_penalty=3.0), [0], []).token == 1, "logits below 0 grow"
    assert choose(-LOGITS, Sampling(**greedy, repetition_penalty=2.0), [3, 4], []).token == 2, "those above shrink"
    assert choose(LOGITS, Sampling(**greedy, logit_bias={4: 100.0}), [], []).token == 4
    assert LOGITS[4] == np.float32(math.log(0.0625)), "logits are left as they were"


@given(
    penalty=st.one_of(st.floats(1e-320, 1e308), st.sampled_from([5e-324, 1e-300, 1e-38, 1e38, 1e300])),
    temperature=st.floats(0.01, 2.0),
    logits=st.lists(st.integers(-30, 30), min_size=3, max_size=3),
)
def test_extreme_values_are_no_chance_of_their_own(penalty: float, temperature: float, logits: list[int]) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty, seed=1, top_k=1)
    values = np.array([*logits, 0.0], np.float32)
    with np.errstate(invalid="raise", divide="raise"):
        token = choose(values, sampling, [0, 3], []).token
    assert token == choose(values, dataclasses.replace(sampling, temperature=0.0), [0, 3], []).token


def test_logprobs_are_those_of_the_model() -> None:
    chosen = choose(LOGITS, Sampling(temperature=0.0, logprobs=2, logit_bias={3: 50.0}), [], [])
    assert chosen.token == 3
    assert chosen.logprob is not None
    assert math.isclose(chosen.logprob, math.log(0.0625), rel_tol=1e-6)
    assert [token for token, _ in chosen.likeliest] == [0, 1]
    assert math.isclose(float(np.exp(log_softmax(LOGITS)).sum()), 1.0)
    assert [token for token, _ in likeliest(log_softmax(LOGITS), 5)] == [0, 1, 2, 3, 4]
    assert choose(LOGITS, Sampling(temperature=0.0, logprobs=0), [], []).likeliest == ()
