from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from support.recorded import recorded, write_rows

_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_azure_keeps_fractions_below_a_microsecond_of_its_clock(tmp_path: Path) -> None:
    rows = [
        _AZURE,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:46.6815909,396,109",
        "2023-11-16 19:15:46.680590+01:00,5,6",
    ]
    loaded = read_trace(write_rows(tmp_path / "a.csv", rows))
    assert loaded.format == "azure"
    assert [(r.at_ms, r.prompt_tokens, r.output_tokens) for r in loaded.trace.requests] == [
        (0.0, 374, 44),
        (0.0, 5, 6),
        (1.001, 396, 109),
    ]


def test_bad_cells_are_named(tmp_path: Path) -> None:
    rows = [_AZURE, "2023-11-16 18:15:46,1,1", "yesterday,1,1", "2023-11-16 18:15:47,many,1", "2023-11-16 18:15:48,1"]
    problems = read_trace(write_rows(tmp_path / "a.csv", rows)).problems
    assert [(problem.line, problem.text.split(";")[0]) for problem in problems.named] == [
        (3, "TIMESTAMP: 'yesterday' is no time"),
        (4, "ContextTokens: expected a whole number, not 'many'"),
        (5, "has 2 cells, the header 3"),
    ]


def test_ramp_csv_keeps_its_own_start(tmp_path: Path) -> None:
    rows = ["output_len,timestamp_ms,prompt_len", "8,6011,178", "None,6012,1"]
    loaded = read_trace(write_rows(tmp_path / "r.csv.gz", rows))
    assert (loaded.format, loaded.trace.name) == ("ramp-csv", "r")
    assert loaded.trace.requests[0].at_ms == 6011
    assert loaded.problems.left_out == 1


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.csv", ["timestamp_ms,prompt_len", "1,2"])
    with pytest.raises(TraceError, match=r"line 1: no column output_len; it has \['timestamp_ms', 'prompt_len'\]"):
        read_trace(path, "ramp-csv")


def test_the_recorded_files() -> None:
    azure = read_trace(recorded("azure-2023/AzureLLMInferenceTrace_conv.csv"))
    assert (len(azure.trace), azure.problems.describe()) == (19_366, [])
    assert len(azure.trace) / azure.trace.duration_ms * 1000 == pytest.approx(5.53, abs=0.005)
    ramp = read_trace(recorded("aibrix_8min_up_and_down.csv"))
    assert (len(ramp.trace), ramp.problems.rows) == (2_024, 2_026)
    assert [problem.line for problem in ramp.problems.named] == [1858, 2013]
