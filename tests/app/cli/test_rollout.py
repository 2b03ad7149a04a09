"""`pointsman rollout`, over admin ports that a test plays."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli import everywhere, main, rollout
from pointsman.app.cli.admin_client import NoFrontEndError
from pointsman.core.model.errors import EngineError
from pointsman.core.trials.arms import Arm, By, Place
from pointsman.core.trials.comparison import Comparison
from pointsman.core.trials.tally import End, Result
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.rollout_report import RolloutDocument, ShadowReport, report

ORDER = RolloutOrder("cost", 0.05, By.SESSION)


def document(order: RolloutOrder | None = ORDER, requests: int = 40, shadows: int = 0) -> RolloutDocument:
    comparison = Comparison()
    for i in range(requests):
        comparison.add(
            Place(Arm.TRIAL if i % 4 == 0 else Arm.BASE, i % 64),
            Result(end=End.FINISHED, at_ms=i, prompt_tokens=100, cached_tokens=25, ttft_ms=100.0 + i % 7, pace_ms=20.0),
        )
    sums = comparison.sums
    shadow = ShadowReport("kv", None, shadows, 1, 0.5, shadows, -2.0, 80.0)
    made = None if order is None else report(order, "auto", sums)
    return RolloutDocument("auto", made, [shadow] if shadows else [], sums)


@dataclass
class FrontEnds:
    """What each says, or raises; and what was asked."""

    says: dict[str, RolloutDocument | EngineError]
    asked: list[tuple[str, str, object]] = field(default_factory=list)

    def call(self, method: str, admin_url: str, path: str, answer: type, body: object = None) -> Any:
        self.asked.append((method, admin_url, body))
        said = self.says[admin_url]
        if isinstance(said, EngineError):
            raise said
        return said


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(*says: RolloutDocument | EngineError) -> FrontEnds:
        urls = ["http://127.0.0.1:8081", *(f"http://b:{i}" for i in range(1, len(says)))]
        ends = FrontEnds(dict(zip(urls, says, strict=True)))
        for module in (rollout, everywhere):
            monkeypatch.setattr(module, "call", ends.call)
            monkeypatch.setattr(module, "front_ends", lambda url: urls)
        return ends

    return of


def test_the_table_shows_both_arms_and_the_verdict(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play(document(shadows=4))
    assert main.run(["rollout"]) == 0
    text = capsys.readouterr().out
    assert "rollout: cost decides 5% of all sessions, auto the rest, since" in text
    assert "no difference yet: too few requests or sessions" in text
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["requests ended"][2:4] == ["30", "10"]
    assert rows["cached"][1:5] == ["25.0", "%", "25.0", "%"]
    assert rows["tokens/s of a request"][-4:-2] == ["50.0", "50.0"]
    assert "shadow kv: agrees in 50 % of 4 decisions, its choices would cost 2.0 ms more by prediction" in text


def test_front_ends_are_added_up(play: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play(document(shadows=10), document(shadows=30))
    assert main.run(["rollout", "status", "--json", str(tmp_path / "r.json")]) == 0
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["rollout"]["requests"] == {"base": {"finished": 60}, "trial": {"finished": 20}}
    assert told["shadows"][0]["decisions"] == 40
    assert told["shadows"][0]["agreement"] == 0.5
    assert main.run(["rollout", "status"]) == 0
    assert "(2 front ends together)" in capsys.readouterr().out


def test_front_ends_that_differ_or_are_gone_are_told(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play(document(), document(RolloutOrder("cost", 0.25, By.SESSION)))
    assert main.run(["rollout"]) == 2
    assert "do not do the same: auto and cost for 25 % by session, running / auto and cost for 5 %" in (
        capsys.readouterr().err
    )
    play(document(), NoFrontEndError("http://b:1", "connection refused"))
    assert main.run(["rollout"]) == 2
    said = capsys.readouterr()
    assert "requests ended" in said.out
    assert "http://b:1" in said.err


def test_set_sends_what_was_named_to_all(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ends = play(document(), document())
    arguments = ["set", "cost", "--share", "5%", "--by", "session", "--no-auto-rollback"]
    assert main.run(["rollout", *arguments]) == 0
    body = {"policy": "cost", "share": "5%", "by": "session", "auto_rollback": False}
    assert ends.asked == [("PUT", "http://127.0.0.1:8081", body), ("PUT", "http://b:1", body)]
    assert capsys.readouterr().out == (
        "cost decides 5% of all sessions, auto the rest; rolls back by itself if worse by more than 5% "
        "(at 2 front ends)\n"
    )


def test_one_that_does_not_hear_it_is_named(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play(document(), NoFrontEndError("http://b:1", "connection refused"), EngineError("http://b:2: no such policy"))
    assert main.run(["rollout", "set", "--share", "5%"]) == 2
    assert (
        "rollout share 5% at 1 of 3 front ends, not at http://b:1 (connection refused); "
        "http://b:2 (http://b:2: no such policy)" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("now", "then"), [(0.0, "1%"), (0.01, "5%"), (0.05, "10%"), (0.3, "50%"), (0.5, "100%")])
def test_widen_takes_the_next_step(play: Any, now: float, then: str) -> None:
    ends = play(document(RolloutOrder("cost", now, By.REQUEST)))
    assert main.run(["rollout", "widen"]) == 0
    assert ends.asked[-1] == ("PUT", "http://127.0.0.1:8081", {"share": then})


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (None, "no rollout runs; begin one with `pointsman rollout set POLICY --share 5%`"),
        (
            RolloutOrder("cost", 1.0, By.REQUEST),
            "decides all already; make it the policy: `pointsman policies set cost`",
        ),
        (RolloutOrder("cost", 0.1, By.REQUEST, ended="it is worse"), "rolled back (it is worse); to begin it again"),
    ],
)
def test_what_can_not_be_widened_says_what_to_do(
    play: Any, order: RolloutOrder | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = play(document(order))
    assert main.run(["rollout", "widen"]) == 2
    assert message in capsys.readouterr().err
    assert [method for method, _, _ in ends.asked] == ["GET"]


def test_back_tells_all(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ends = play(document(RolloutOrder("cost", 0.1, By.REQUEST, ended="pagers", ended_s=1.0)), document())
    assert main.run(["rollout", "back", "--reason", "pagers"]) == 0
    assert [(method, body) for method, _, body in ends.asked] == [("DELETE", {"reason": "pagers"})] * 2
    assert capsys.readouterr().out == "rolled back: auto decides all requests at 2 front ends\n"
    play(document(RolloutOrder("cost", 0.1, By.REQUEST, ended="pagers", ended_s=1.0)))
    assert main.run(["rollout"]) == 0
    assert "was rolled back at 1970-01-0" in capsys.readouterr().out


def test_without_a_rollout_it_says_who_decides(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play(document(None))
    assert main.run(["rollout"]) == 0
    assert capsys.readouterr().out == "no rollout runs; auto decides all requests\n"


def test_nobody_is_promised_a_comparison_with_nobody(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play(document(RolloutOrder("cost", 1.0, By.SESSION)))
    assert main.run(["rollout", "set", "--share", "100%"]) == 0
    assert "rolled back by itself only if its policy fails" in capsys.readouterr().out
