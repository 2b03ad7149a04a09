from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from support.recorded import write_rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"hello\nworld\n", "its first line is 'hello'"),
        (b'{"what": 1, "else": 2}\n', "JSON with the fields what, else"),
        (b"\xff\xfe\x00", "of no known format"),
    ],
)
def test_an_unknown_file_says_what_it_looks_like_and_what_was_tried(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert "mooncake" in str(caught.value)
    assert "--format" in str(caught.value)


def test_an_ambiguous_file_names_the_formats(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1, "output_length": 1, "input_toks": 1, "output_toks": 1}
    path = write_rows(tmp_path / "f", [row | {"arrival_time_ns": 0}])
    with pytest.raises(TraceError, match="could be mooncake, vllm-workload; say which with --format"):
        read_trace(path)
    assert read_trace(path, "vllm-workload").format == "vllm-workload"


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match=r"--format nope: unknown; there are pointsman, .*mooncake"):
        read_trace(write_rows(tmp_path / "f", ["x"]), "nope")


@pytest.mark.parametrize(("rows", "message"), [([], "none of its 0 rows"), (["7"], "none of its 1 rows.*line 1: exp")])
def test_a_file_without_requests_is_an_error(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write_rows(tmp_path / "f", rows), "mooncake")


def test_a_cut_off_gzip_file_says_so(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1, "output_length": 1}
    rows = "".join(json.dumps(row | {"output_length": 1 + number**3}) + "\n" for number in range(20_000))
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(rows.encode())[:-200])
    with pytest.raises(TraceError, match="damaged or cut off"):
        read_trace(path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00.009930+00:00,1,2\r\n")
    assert len(read_trace(path).trace) == 1
