"""Durations, sizes, route keys, URLs, secrets: what they take and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.route_key import RouteKey, RouteKeySource
from pointsman.edge.configuration.secret import Secret, secret_of_environment
from pointsman.edge.configuration.share import Share
from pointsman.edge.configuration.size import Size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("10m", 600), ("250ms", 0.25), ("1.5h", 5400), ("1d", 86400), (" 2 s ", 2), ("3S", 3)],
)
def test_duration(text: str, seconds: float) -> None:
    assert Duration.parse(text).s == pytest.approx(seconds)
    assert Duration.parse(text).ms == pytest.approx(seconds * 1000)


@pytest.mark.parametrize(
    "value", [5, 5.0, "5", "s", "-5s", "0s", "5 weeks", "", None, True, "5s5m", "1e3s", "9" * 400 + "s"]
)
def test_duration_refuses(value: object) -> None:
    with pytest.raises(ValueError, match="with its unit"):
        Duration.parse(value)


@given(st.integers(1, 10**9), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_duration_prints_what_it_reads(count: int, unit: str) -> None:
    duration = Duration.parse(f"{count}{unit}")
    assert Duration.parse(str(duration)).s == pytest.approx(duration.s, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "size_bytes"), [("64MiB", 64 * 2**20), ("500kB", 500_000), (1024, 1024), ("7", 7), ("1 GiB", 2**30)]
)
def test_size(value: object, size_bytes: int) -> None:
    assert int(Size.parse(value)) == Size.parse(value).bytes == size_bytes


@pytest.mark.parametrize("value", [0, "0MiB", -1, "1.5MiB", "MiB", True, None, "1TiBx", 1.0])
def test_size_refuses(value: object) -> None:
    with pytest.raises(ValueError, match="a size above 0"):
        Size.parse(value)


@given(st.integers(1, 2**50))
def test_size_prints_what_it_reads(size_bytes: int) -> None:
    assert Size.parse(str(Size(size_bytes))) == Size(size_bytes)


def test_route_key() -> None:
    assert RouteKey.parse("header:X-Session-ID") == RouteKey(RouteKeySource.HEADER, "x-session-id")
    assert RouteKey.parse("body:metadata.session").path == ("metadata", "session")
    assert RouteKey.parse("tenant") == RouteKey(RouteKeySource.TENANT)
    assert [str(RouteKey.parse(text)) for text in ("header:a", "body:b.c", "tenant")] == [
        "header:a",
        "body:b.c",
        "tenant",
    ]


@pytest.mark.parametrize("value", ["", "header:", "header:a b", "body:", "body:a..b", "tenant:x", "cookie:a", 5, None])
def test_route_key_refuses(value: object) -> None:
    with pytest.raises(ValueError, match="header:NAME"):
        RouteKey.parse(value)


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("HTTPS://Engine.Local", "https://engine.local", "engine.local:443"),
        ("http://engine", "http://engine", "engine:80"),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_engine_url(text: str, url: str, name: str) -> None:
    assert EngineUrl.parse(text) == url
    assert EngineUrl.parse(text).host_and_port == name


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the base URL"),
        ("", "the base URL"),
        (8000, "the base URL"),
        ("10.0.0.1:8000", "the base URL"),
        ("ftp://a", "the base URL"),
        ("http://", "the base URL"),
        ("http://a:99999", "Port out of range"),
        ("http://a:0", "port 0"),
        ("http://a b", "the base URL"),
        ("http://a:1/v1", r"no /v1"),
        ("http://a:1?x=1", "without a path"),
        ("http://user:word@a:1", "api_key_env"),
        ("http://a\x00b:1", "in printable ASCII"),
        ("http://mün:1", "xn--"),
    ],
)
def test_engine_url_refuses(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineUrl.parse(value)


def test_secret_shows_nothing() -> None:
    secret = Secret.parse(" word ")
    assert secret.reveal() == "word"
    assert "word" not in f"{secret} {secret!r} {[secret]}"
    assert secret == Secret("word")
    with pytest.raises(ValueError, match="not empty"):
        Secret.parse("")


SENDABLE = ["sk-1_2.3~4+5/6==", "two words", "word\n", "\tword\r\n"]
NOT_SENDABLE = ["s\nx", "s\r\nx", "s\tx", "s\x00", "s\x7fx", "s\x85x", "sé", "s€", "s\ud800", "\u3000s"]


@pytest.mark.parametrize("text", SENDABLE)
def test_a_secret_that_can_be_sent(text: str) -> None:
    assert Secret.parse(text).reveal() == text.strip()
    assert secret_of_environment("KEY", {"KEY": text}, "api_key_env") == Secret.parse(text)


@pytest.mark.parametrize("text", NOT_SENDABLE)
def test_a_secret_that_no_header_can_hold(text: str) -> None:
    with pytest.raises(ValueError, match=r"^printable ASCII text; character \d+ is ") as refused:
        Secret.parse(text)
    assert text not in str(refused.value)
    with pytest.raises(
        ConfigError, match=r"^environment variable KEY: expected printable ASCII text; character \d+ is"
    ):
        secret_of_environment("KEY", {"KEY": text}, "api_key_env")


@pytest.mark.parametrize("environ", [{}, {"KEY": ""}, {"KEY": " \n"}])
def test_a_secret_that_is_not_set(environ: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match="environment variable KEY is not set, or empty; export it or remove admin_key_env"
    ):
        secret_of_environment("KEY", environ, "admin_key_env")


@pytest.mark.parametrize(
    ("value", "part"), [("5%", 0.05), (" 0.5 % ", 0.005), ("0%", 0), ("100%", 1), (".25%", 0.0025)]
)
def test_shares_are_read(value: str, part: float) -> None:
    assert Share.parse(value).part == pytest.approx(part)


@pytest.mark.parametrize("value", ["5", 5, 0.05, "-1%", "100.1%", "nan%", "%", "5 percent", None, True])
def test_other_values_are_no_shares(value: object) -> None:
    with pytest.raises(ValueError, match="a share from 0% to 100%"):
        Share.parse(value)


@given(st.integers(0, 10_000))
def test_a_share_reads_what_it_writes(hundredths: int) -> None:
    share = Share.parse(f"{hundredths / 100}%")
    assert Share.parse(str(share)).part == pytest.approx(share.part)
