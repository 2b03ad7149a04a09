"""Keys and limits as `pointsman status` shows them."""

from __future__ import annotations

import io

from rich.console import Console

from pointsman.app.cli.tenants_table import print_tenants
from pointsman.edge.serving.tenants.report import AccountReport, KeysReport, TenancyReport, UseReport


def shown(report: TenancyReport) -> str:
    stream = io.StringIO()
    print_tenants(Console(file=stream, width=200), report)
    return stream.getvalue()


def test_keys_and_limits() -> None:
    accounts = [
        AccountReport("tenant acme", 3, 4, UseReport(60, -2.0, 62.0), UseReport(1e6, 999_940.2, 1.0), 7),
        AccountReport("key [k1]", 1, None, None, None, 0),
    ]
    text = shown(TenancyReport(KeysReport("keys.yaml", 5, 1, 0.0, None), accounts, 12))
    lines = text.splitlines()
    assert lines[0] == "API keys: 5 in keys.yaml, 1 of them expired"
    assert lines[1].split() == ["limits", "of", "running", "requests", "left", "tokens", "left", "refused"]
    assert " ".join(lines[2].split()) == "tenant acme 3/4 -2/60 a minute 999940/1000000 a minute 7"
    assert " ".join(lines[3].split()) == "key [k1] 1 – – 0"
    assert lines[4] == "and 12 more with more left"


def test_a_broken_file_is_named() -> None:
    text = shown(TenancyReport(KeysReport("keys.yaml", 5, 0, 0.0, "keys.yaml:3: keys[1].id is missing"), [], 0))
    assert text.splitlines() == [
        "API keys: 5 in keys.yaml",
        "API keys: those read before stay in force: keys.yaml:3: keys[1].id is missing",
    ]
