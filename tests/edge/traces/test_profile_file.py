"""Profiles in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import Validity, profile
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.traces.profile_file import (
    Measured,
    ProfileFile,
    Step,
    Valid,
    load_profile,
    read_profile_file,
    write_profile_file,
)

CONTENT = ProfileFile(
    schema=1,
    name="mine",
    step=Step(a_ms=1.5, b_ms_per_sequence=0.25, c_ms_per_1000_context_tokens=0.1, d_ms_per_prefill_token=2.0),
    overhead_ms=3.5,
    kv_tokens=41_408,
    kv_bytes_per_token=131_072,
    gpu="RTX 4090",
    mape=4.5,
    valid=Valid.of(Validity((10, 4_000), (1, 500), (1, 60))),
    measured=Measured(requests=60, scheduling="ahead", warnings=("b: could not be separated", "x")),
)


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write_profile_file(path, CONTENT)
    assert read_profile_file(path) == CONTENT
    loaded = load_profile(str(path))
    assert loaded.step == StepCoefficients(1.5, 0.25, 0.1, 2.0)
    assert (loaded.name, loaded.kv_tokens, loaded.gpu, loaded.mape) == ("mine", 41_408, "RTX 4090", 4.5)
    assert loaded.overhead_ms == 3.5
    assert loaded.valid == Validity((10, 4_000), (1, 500), (1, 60))


def test_a_file_needs_no_suffix_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    write_profile_file(path, CONTENT)
    assert load_profile(str(path)).name == "mine"


def test_names_of_the_table_go_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").write_text("no profile")
    monkeypatch.chdir(tmp_path)
    assert load_profile("tiny") == profile("tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("a_ms: 1.5", "a_ms: -1.5"), "mine.yaml:5: step.a_ms: expected a number from 0 to 1000000, not -1.5"),
        (("a_ms: 1.5", "a: 1.5"), "mine.yaml:5: step.a: unknown key"),
        (("kv_tokens: 41408", "kv_tokens: 0"), "kv_tokens: expected an integer from 1 to 1000000000, not 0"),
        (
            ("    most: 60", "    most: many"),
            "valid.sequences.most: expected an integer from 1 to 1000000000, not 'many'",
        ),
        (("schema: 1", "schema: 7"), "schema 7 is not one that this version reads"),
        (("name: mine\n", ""), "name is missing"),
        (("name: mine\n", "name: ''\n"), "name: "),
        (("a_ms: 1.5", "a_ms: .inf"), "step.a_ms: expected a number from 0 to 1000000, not inf"),
        (("overhead_ms: 3.5", "overhead_ms: .inf"), "overhead_ms: expected a number from 0 to 1000000, not inf"),
        (("kv_tokens: 41408", "kv_tokens: 99999999999999"), "kv_tokens: expected an integer from 1 to 1000000000, not"),
        (("    most: 60", "    most: 0"), "most: expected an integer from 1"),
        (("    least: 10\n", "    least: 5000\n"), "valid.prompt_tokens: least is 5000, more than most, 4000"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "mine.yaml"
    write_profile_file(path, CONTENT)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        load_profile(str(path))


def test_an_estimate_is_no_file() -> None:
    assert load_profile("estimate:gpu=l40s,params=8b").gpu == "L40S"


def test_what_is_neither_a_name_nor_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'h100/llama-8b'.*or a file that `pointsman calibrate` wrote"):
        load_profile("h100/lama-8b")
    with pytest.raises(ConfigError, match=r"gone\.yaml: can't be read: No such file"):
        load_profile(str(tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match=r"x\.yaml: can't be written"):
        write_profile_file(tmp_path / "no" / "x.yaml", CONTENT)
    (tmp_path / "b.yaml").write_bytes(b"schema: 1\nname: \xff\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:2: is not UTF-8"):
        load_profile(str(tmp_path / "b.yaml"))
