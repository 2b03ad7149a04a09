"""The decision log's file: whole lines, rotation, a bounded queue, what a kill leaves."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import ConfigError
from pointsman.edge.telemetry import decision_log
from pointsman.edge.telemetry.decision_log import DecisionLog
from pointsman.edge.telemetry.decision_row import DecisionRow, pack_keys, unpack_keys


def row(number: int, **fields: object) -> DecisionRow:
    values = {"id": f"r{number}", "at_ms": 1.0, "model": "m", "status": "finished", "http": 200}
    return DecisionRow(**(values | {"prompt_tokens": 10, "prompt_from": "engine"} | fields))  # type: ignore[arg-type]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def until(condition: Callable[[], bool]) -> None:
    """The thread writes soon."""
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("the thread did nothing for five seconds")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def test_a_header_then_a_line_a_row(path: Path) -> None:
    log = DecisionLog(path, 10**6, 2, product="9.9", clock_s=lambda: 1.5)
    for number in range(3):
        log.add(lambda number=number: row(number))
    log.close()
    header, *rows = lines(path)
    assert header == {"pointsman_decisions": 1, "pointsman": "9.9", "started_ms": 1500.0}
    assert [one["id"] for one in rows] == ["r0", "r1", "r2"]
    assert (log.written, log.dropped) == (3, 0)


def test_it_is_written_without_being_closed(path: Path) -> None:
    made = threading.Event()
    log = DecisionLog(path, 10**6, 2)

    def make() -> DecisionRow:
        made.set()
        return row(1)

    log.add(make)
    assert made.wait(5)
    log.close()
    assert len(lines(path)) == 2


def test_a_second_start_goes_on_after_a_line_that_was_cut_off(path: Path) -> None:
    path.write_bytes(b'{"pointsman_decisions":1}\n{"id":"r0","at_')
    log = DecisionLog(path, 10**6, 2)
    log.add(lambda: row(1))
    log.close()
    parts = path.read_text().split("\n")
    assert parts[1] == '{"id":"r0","at_'
    assert json.loads(parts[2])["id"] == "r1"
    assert len(parts) == 4


def test_files_rotate_by_size(path: Path) -> None:
    log = DecisionLog(path, 1000, 2)
    for number in range(40):
        log.add(lambda number=number: row(number))
    log.close()
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    found = [lines(path.parent / name) for name in reversed(names)]
    assert all(one[0]["pointsman_decisions"] == 1 for one in found)
    assert all((path.parent / name).stat().st_size <= 1000 for name in names)
    kept = [one["id"] for part in found for one in part[1:]]
    assert kept == [f"r{number}" for number in range(40 - len(kept), 40)]
    assert log.written == 40


def test_none_is_kept_with_keep_0_and_a_row_larger_than_a_file_is_written(path: Path) -> None:
    log = DecisionLog(path, 300, 0)
    log.add(lambda: row(1))
    log.add(lambda: row(2, blocks="x" * 1000))
    log.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert lines(path)[-1]["id"] == "r2"


def test_rows_beyond_the_queue_are_dropped_counted_and_said_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision_log, "MOST_QUEUED", 5)
    monkeypatch.setattr(decision_log, "WRITE_EVERY_S", 60)
    log = DecisionLog(path, 10**6, 2)
    for number in range(9):
        log.add(lambda number=number: row(number))
    assert log.dropped == 4
    log.close()
    assert log.written == 5
    assert [record.message for record in caplog.records if "rows are dropped" in record.message] == [
        "decision log: rows are dropped: its disk or its thread is too slow: 5 rows wait (said once; counted in "
        "pointsman_decision_log_dropped_total)"
    ]


def test_a_file_that_can_not_be_opened_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"decision-log.path: .*none/d.jsonl can't be written: No such file"):
        DecisionLog(tmp_path / "none" / "d.jsonl", 100, 1)


def test_it_goes_on_when_the_disk_takes_bytes_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(path, 10**6, 1)
    real, failures = decision_log._write_all, [OSError(28, "No space left on device")]

    def write_all(file: object, data: bytes) -> None:
        if failures:
            raise failures.pop()
        real(file, data)  # type: ignore[arg-type]

    monkeypatch.setattr(decision_log, "_write_all", write_all)
    log._write([b"{}\n", b"{}\n"])
    assert (log.written, log.dropped) == (0, 2)
    log.add(lambda: row(3))
    log.close()
    assert [one.get("id") for one in lines(path)] == [None, "r3"]


def test_what_a_full_disk_still_took_counts_as_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(path, 10**6, 1)
    real = decision_log._write_all

    def write_all(file: FileIO, data: bytes) -> None:
        real(file, data[:13])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decision_log, "_write_all", write_all)
    log._write([b'{"n":1}\n', b'{"n":2}\n', b'{"n":3}\n'])
    monkeypatch.undo()
    assert (log.written, log.dropped) == (1, 2)
    log.add(lambda: row(3))
    log.close()
    assert path.read_text().splitlines()[1:3] == ['{"n":1}', '{"n":']


@pytest.mark.parametrize("how", ["moved", "removed", "emptied"])
def test_it_goes_on_at_its_path_when_somebody_takes_the_file_away(path: Path, how: str) -> None:
    log = DecisionLog(path, 10**6, 2)
    log.add(lambda: row(1))
    until(lambda: log.written == 1)
    if how == "moved":
        path.rename(path.with_suffix(".old"))
    elif how == "removed":
        path.unlink()
    else:
        path.write_bytes(b"")
    log.add(lambda: row(2))
    log.close()
    header, *rows = lines(path)
    assert header["pointsman_decisions"] == 1
    assert [one["id"] for one in rows] == ["r2"]
    assert (log.written, log.dropped) == (2, 0)


def test_rows_are_dropped_and_counted_while_its_folder_is_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = path.parent / "logs"
    folder.mkdir()
    log = DecisionLog(folder / "decisions.jsonl", 10**6, 2)
    shutil.rmtree(folder)
    log.add(lambda: row(1))
    until(lambda: log.dropped == 1)
    folder.mkdir()
    log.add(lambda: row(2))
    log.close()
    assert [one.get("id") for one in lines(folder / "decisions.jsonl")] == [None, "r2"]
    assert "can't be written: No such file or directory" in caplog.text


def test_a_row_that_can_not_be_made_ends_no_others(path: Path) -> None:
    log = DecisionLog(path, 10**6, 1)
    log.add(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    log.add(lambda: row(2))
    log.close()
    assert (log.written, log.dropped) == (1, 1)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_keys_keep_their_low_bits(keys: list[int]) -> None:
    texts = unpack_keys(pack_keys(keys))
    same = {key & (2**48 - 1) for key in keys}
    assert len(texts) == len(keys)
    assert len(set(texts)) == len(same)


def test_a_damaged_text_of_keys() -> None:
    with pytest.raises(ValueError, match="9 characters"):
        unpack_keys("123456789")
