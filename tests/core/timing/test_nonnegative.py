from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from pointsman.core.timing.nonnegative import fit_nonnegative, solve_nonnegative


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_agrees_with_the_library_for_long_problems(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, count))
    target = features @ rng.normal(size=count) + rng.normal(size=30)
    found = solve_nonnegative(features.T @ features, features.T @ target)
    assert (found >= 0).all()
    assert found == pytest.approx(nnls(features, target)[0], rel=1e-6, abs=1e-8)


def test_relative_errors_count_alike_for_small_and_large_targets() -> None:
    features = np.array([[1.0, 1.0], [1.0, 1000.0], [2.0, 0.0]])
    assert fit_nonnegative(features, features @ [3.0, 0.5]) == pytest.approx([3.0, 0.5], rel=1e-6)
    assert fit_nonnegative(features, np.array([1.0, 0.5, 2.0]))[1] == 0.0


def test_features_that_go_together_share_what_they_explain() -> None:
    features = np.array([[1.0, 2.0], [2.0, 4.0]])
    found = fit_nonnegative(features, np.array([4.0, 8.0]))
    assert features @ found == pytest.approx([4.0, 8.0], rel=1e-6)
