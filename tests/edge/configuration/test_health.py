"""Section control-plane.health."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.loader import load_file
from pointsman.edge.serving.settings import FrontendSettings


def settings_of(tmp_path: Path, text: str) -> HealthSettings:
    path = tmp_path / "pointsman.yaml"
    path.write_text(text)
    return FrontendSettings.of(load_file(path)).health


def test_nothing_said(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "control-plane: {}\n") == HealthSettings()


def test_everything_said(tmp_path: Path) -> None:
    text = """\
control-plane:
  heartbeat_interval: 2s
  health_canary: false
  health:
    canary_idle: none
    canary_limit: 3s
    outliers: false
    most_out: 25%
    failures: 7
    failure_share: 80%
    cool_off: 5s
    most_cool_off: 1m
"""
    assert settings_of(tmp_path, text) == HealthSettings(
        heartbeat_ms=2_000,
        canary=False,
        canary_idle_ms=None,
        canary_limit_ms=3_000,
        outliers=False,
        most_out=0.25,
        failures=7,
        failure_share=0.8,
        cool_off_ms=5_000,
        most_cool_off_ms=60_000,
    )


def test_a_canary_may_take_two_heartbeats(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "control-plane: {heartbeat_interval: 2s}\n").canary_ms == 4_000


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{cool_off: 10m}", "most_cool_off: 5m is shorter than cool_off, 10m"),
        ("{failure_share: 0%}", "failure_share: 0% would leave out every engine"),
        ("{failures: 0}", "failures"),
        ("{canary_idle: 60}", "expected a duration"),
        ("{canary: true}", "unknown key"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, section: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"control-plane\.health") as raised:
        settings_of(tmp_path, f"control-plane:\n  health: {section}\n")
    assert words in str(raised.value)
