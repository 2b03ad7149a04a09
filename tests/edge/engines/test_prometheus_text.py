from __future__ import annotations

import pytest

from pointsman.edge.engines.http import EngineCallError
from pointsman.edge.engines.prometheus_text import (
    capacity_or_none,
    count,
    count_or_none,
    has_prefix,
    select,
    share_or_none,
)

TEXT = """\
# HELP run Running.
# TYPE run gauge
run{engine="0",model="a b{c}"} 3.0
run{engine="1",model="x"} 5
run_by_reason{engine="0"} 77
garbage that nobody asked for {{{
tokens_total{source="cache",engine="0"} 12 1700000000000
"""


def test_ranks_are_told_apart_by_label():
    assert select(TEXT, ["run"]).by_rank("run", rank_label="engine") == {0: 3.0, 1: 5.0}


def test_names_are_compared_whole():
    assert select(TEXT, ["run"]).named("run_by_reason") == []


def test_the_first_name_that_exists_wins():
    samples = select(TEXT, ["run", "run_by_reason"])

    assert samples.by_rank("gone", "run", "run_by_reason", rank_label="engine") == {0: 3.0, 1: 5.0}


def test_series_are_filtered_by_label():
    samples = select(TEXT, ["tokens_total"])

    assert samples.by_rank("tokens_total", rank_label="engine", where={"source": "cache"}) == {0: 12.0}
    assert samples.by_rank("tokens_total", rank_label="engine", where={"source": "disk"}) == {}


def test_several_processes_tell_the_same_number_once():
    text = 'run{engine="0",pid="1"} 4\nrun{engine="0",pid="2"} 4\nrun{engine="0",pid="3"} NaN\n'

    assert select(text, ["run"]).by_rank("run", rank_label="engine") == {0: 4.0}


@pytest.mark.parametrize("label", ["", "zero", None])
def test_a_rank_that_is_no_number_is_rank_0(label):
    text = "run 4\n" if label is None else f'run{{engine="{label}"}} 4\n'

    assert select(text, ["run"]).by_rank("run", rank_label="engine") == {0: 4.0}


@pytest.mark.parametrize("line", ["run", "run three", 'run{engine="0} 3', "run{engine=0} 3"])
def test_garbage_in_what_was_asked_for_is_an_error(line):
    with pytest.raises(EngineCallError, match="Prometheus"):
        select(line + "\n", ["run"])


@pytest.mark.parametrize("text", ["", "<html><body>run</body></html>", "\x00\xff\n" * 50])
def test_garbage_elsewhere_is_no_sample(text):
    assert select(text, ["run"]).named("run") == []


def test_prefix_is_found_in_samples_and_descriptions():
    assert has_prefix("# HELP vllm:x Something\n", "vllm:")
    assert has_prefix("a 1\nvllm:x 1\n", "vllm:")
    assert not has_prefix("# HELP a about vllm:x\na 1\n", "vllm:")


@pytest.mark.parametrize("value", [None, -1.0, float("nan"), float("inf"), 1e300, 2.0**63])
def test_numbers_that_cannot_be_counts(value):
    assert count_or_none(value) is None
    with pytest.raises(EngineCallError, match="running"):
        count(value, "running")


def test_what_no_cache_can_hold_is_no_capacity():
    assert [capacity_or_none(tokens) for tokens in (None, 0, -1, 2**63, 16 * 2**20)] == [
        None,
        None,
        None,
        None,
        16 * 2**20,
    ]


def test_shares_stay_between_0_and_1():
    assert [share_or_none(v) for v in (-0.1, 0.5, 1.2, float("nan"), None)] == [0.0, 0.5, 1.0, None, None]
