from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.source import ReadOptions
from support.recorded import recorded


def _client(folder: Path, number: int, windows: list[str], dataset: dict[str, dict[str, str]] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"chunk-{number}-trace.csv").write_text("".join(window + "\n" for window in windows))
    if dataset is None:
        dataset = {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{7: 1.0}", "reason_ratio": "{0.1: 1}"}}
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "clients"
    _client(folder, 3, ["0,2.0,1.0,Gamma,1.0,0.5", "600,0,0,,0,0", "1200,0.505,3.0,Gamma,0.111,9.0"])
    _client(folder, 12, ["0,0,0,,0,0", "600,5.0,0.5,Weibull,2.1,0.2", "1200,0,0,,0,0"])
    return folder


def test_windows_have_their_rates_and_clients_their_names(folder: Path) -> None:
    loaded = read_trace(folder)
    trace = loaded.trace
    assert (loaded.format, trace.name, loaded.problems.describe()) == ("servegen", "clients", [])
    in_windows = Counter((request.tenant, request.at_ms // 600_000) for request in trace.requests)
    assert in_windows == {("client-3", 0): 1200, ("client-12", 1): 3000, ("client-3", 2): 303}
    lengths = Counter(request.prompt_tokens for request in trace.requests)
    assert set(lengths) == {10, 20}
    assert lengths[10] / len(trace) == pytest.approx(0.5, abs=0.05)
    assert {request.output_tokens for request in trace.requests} == {7}


@pytest.mark.parametrize(("window", "cv"), [(0, 1.0), (2, 3.0), (1, 0.5)])
def test_burstiness_is_that_of_the_window(folder: Path, window: int, cv: float) -> None:
    trace = read_trace(folder).trace
    times = [request.at_ms for request in trace.requests if request.at_ms // 600_000 == window]
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.25)


def test_the_part_that_is_asked_for_is_the_same_as_in_the_whole(folder: Path) -> None:
    whole = read_trace(folder).trace
    part = read_trace(folder, options=ReadOptions(start_s=300, duration_s=600)).trace
    inside = [request for request in whole.requests if 300_000 <= request.at_ms < 900_000]
    assert [r.at_ms + 300_000 for r in part.requests] == pytest.approx([r.at_ms for r in inside])
    assert [r.prompt_tokens for r in part.requests] == [r.prompt_tokens for r in inside]
    assert read_trace(folder, options=ReadOptions(seed=1)).trace != whole
    assert read_trace(folder) == read_trace(folder)


def test_one_client_alone(folder: Path) -> None:
    loaded = read_trace(folder / "chunk-12-trace.csv")
    assert {request.tenant for request in loaded.trace.requests} == {"client-12"}


def test_bad_windows_and_lengths_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    lines = [
        "0,1,1,Gamma,1,1",
        "600,1,1,Pareto,1,1",
        "1200,x,1,Gamma,1,1",
        "1800,1",
        "2400,1,1,Gamma,0,1",
        "3000,-1,0,,0,0",
    ]
    _client(folder, 0, lines)
    late = {"900": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}
    _client(folder, 1, ["0,1,1,Gamma,1,1", "600,0,0,,0,0"], late)
    _client(folder, 2, ["0,1,1,Gamma,1,1"], {"0": {"input_tokens": "{oops}", "output_tokens": "{1: 1}"}})
    loaded = read_trace(folder)
    assert len(loaded.trace) == 600
    texts = [f"{problem.line}: {problem.text}" for problem in loaded.problems.named]
    assert texts[:5] == [
        "2: chunk-0-trace.csv: distribution: expected Gamma or Weibull, not 'Pareto'",
        "3: chunk-0-trace.csv: rate: expected a number, not 'x'",
        "4: chunk-0-trace.csv: has 2 cells, not 6",
        "5: chunk-0-trace.csv: first parameter: 0.0 is no shape",
        "6: chunk-0-trace.csv: rate: -1.0 is no rate",
    ]
    assert texts[5] == "1: chunk-1-trace.csv: its dataset says nothing of 0 s; 600 requests are missing"
    assert texts[6].startswith("1: chunk-2-trace.csv: its dataset, input_tokens at 0 s: is no JSON")


def test_folders_without_clients(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a folder without files of a known kind"):
        read_trace(tmp_path)
    (tmp_path / "chunk-1-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    with pytest.raises(TraceError, match=r"chunk-1-dataset.json"):
        read_trace(tmp_path)


def test_recorded_clients() -> None:
    folder = recorded("servegen/reason/deepseek-r1")
    loaded = read_trace(folder, options=ReadOptions(start_s=36_000, duration_s=600))
    assert not loaded.problems.describe()
    assert len(loaded.trace) / 600 == pytest.approx(12.4, abs=1.5)


def test_more_requests_than_fit_into_memory_are_not_drawn(folder: Path) -> None:
    _client(folder, 4, [f"{600 * number},40000,1.0,Gamma,1.0,0.5" for number in range(2)])
    with pytest.raises(TraceError, match="describes 48,004,503 requests, more than 10,000,000; take a part"):
        read_trace(folder)
    with pytest.raises(TraceError, match="--start-s 700 --duration-s 600"):
        read_trace(folder, options=ReadOptions(start_s=700))
    assert len(read_trace(folder, options=ReadOptions(start_s=1200)).trace) == 303
