from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger import links
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.core.timing.link_priors import HOPE, LinkPriors
from pointsman.core.timing.link_times import NO_LINKS
from pointsman.core.timing.links import Link
from pointsman.core.timing.step import StepCoefficients

KV = KvShape(HandShake.BLOCKS, bytes_per_token=1000)
SLOW_BYTES_PER_MS = 125_000.0
"""Of 1 Gb/s."""


def spec(name: str, url: str, *place: str, kv: KvShape | None = KV) -> WorkerSpec:
    return WorkerSpec(worker_id(name), url, "vllm", ("m",), kv=kv, place=place)


def fleet(*specs: WorkerSpec, **settings: object) -> Ledger:
    ledger = Ledger(**settings)  # type: ignore[arg-type]
    for one in specs:
        ledger.apply(ev.WorkerJoined(one, 0.0))
        ledger.apply(ev.HealthRead(one.id, 0.0, True, True, "answers"))
    return ledger


def nodes(ledger: Ledger) -> list[int]:
    numbers: list[int] = ledger.view(Request("asks", "m", 0.0, 1)).column(Column.NODE).tolist()
    return numbers


def two() -> Ledger:
    return fleet(spec("a", "http://h1:1"), spec("b", "http://h2:1"))


def moved(ledger: Ledger, name: str, size_bytes: int, at_ms: float, slots: int = 1) -> None:
    """KV for a request goes from a to b, over 1 Gb/s that it shares with others that began before."""
    ledger.apply(ev.Admitted(Request(name, "m", at_ms, size_bytes // 1000), at_ms))
    ledger.apply(ev.Dispatched(name, worker_id("b"), at_ms, prefill=ev.PrefillLeg(worker_id("a"))))
    ledger.apply(ev.PrefillEnded(name, at_ms))
    ledger.apply(ev.TransferEnded(name, at_ms, None, size_bytes, 1.0 + slots * size_bytes / SLOW_BYTES_PER_MS))


class TestMachines:
    def test_are_told_else_the_host_of_the_url(self) -> None:
        ledger = fleet(
            spec("a", "http://h1:8000"),
            spec("b", "http://h1:8001"),
            spec("c", "http://h2:8000", "h1"),
            spec("d", "http://h2:8000", "", "rack"),
        )
        a, b, c, d = nodes(ledger)
        assert a == b == c
        assert d != a

    def test_those_nobody_works_on_are_forgotten_when_there_are_too_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(links, "MOST_MACHINES", 4)
        ledger = two()
        for number in range(20):
            ledger.apply(ev.LinkMeasured("h1", f"probed{number}", 0.0, 10**6, 5.0))
        rows = ledger.links_snapshot()
        assert [row.target for row in rows] == ["probed18", "probed19"]
        assert sorted(nodes(ledger)) == [0, 1]


class TestPriors:
    def test_are_by_the_nearest_place_that_two_machines_share(self) -> None:
        priors = LinkPriors(levels=(Link("rack", 9.0, 0.3), Link("zone", 4.0, 0.7)), network=Link("net", 1.0, 2.0))
        ledger = fleet(
            spec("a", "http://h1", "n1", "r1", "z"),
            spec("b", "http://h2", "n2", "r1", "z"),
            spec("c", "http://h3", "n3", "r2", "z"),
            spec("d", "http://h4"),
            link_priors=priors,
        )
        a, b, c, d = nodes(ledger)
        times = ledger.timing.links
        assert [times.of(a, other).floor_ms for other in (b, c, d)] == [0.3 / HOPE, 0.7 / HOPE, 2.0 / HOPE]
        assert times.of(a, b).seen == 0

    def test_fleets_that_pass_no_kv_on_have_no_links(self) -> None:
        ledger = fleet(spec("a", "http://h1", kv=None), spec("b", "http://h2", "x", kv=None))
        ledger.apply(ev.Tick(1_000.0))
        assert ledger.timing.links is NO_LINKS


class TestLearning:
    def test_transfers_teach_the_link_and_the_first_ones_are_told_at_once(self) -> None:
        ledger = two()
        a, b = nodes(ledger)
        before = ledger.timing.links.of(a, b).ms(50e6)
        for number in range(3):
            moved(ledger, f"r{number}", 50_000_000, float(number))
        learned = ledger.timing.links.of(a, b)
        assert learned.ms(50e6) > 10 * before
        assert ledger.timing.links.of(b, a).seen == 0
        for number in range(3, 12):
            moved(ledger, f"r{number}", 50_000_000, float(number))
        ledger.apply(ev.Tick(20.0))
        assert ledger.timing.links.of(a, b).ms(50e6) == pytest.approx(1 + 400, rel=0.1)
        (row,) = ledger.links_snapshot()
        assert (row.source, row.target) == ("h1", "h2")

    def test_later_ones_are_told_with_the_tick(self) -> None:
        ledger = two()
        for number in range(8):
            moved(ledger, f"r{number}", 50_000_000, float(number))
        ledger.apply(ev.Tick(10.0))
        before = ledger.timing
        moved(ledger, "last", 50_000_000, 11.0)
        assert ledger.timing is before
        ledger.apply(ev.Tick(12.0))
        assert ledger.timing is not before

    def test_what_shared_the_link_is_taken_out(self) -> None:
        ledger = two()
        for other in ("x", "y"):  # two that stay under way
            ledger.apply(ev.Admitted(Request(other, "m", 0.0, 10), 0.0))
            ledger.apply(ev.Dispatched(other, worker_id("b"), 0.0, prefill=ev.PrefillLeg(worker_id("a"))))
            ledger.apply(ev.PrefillEnded(other, 0.0))
        for number in range(15):
            moved(ledger, f"r{number}", 50_000_000, 1.0, slots=3)
        ledger.apply(ev.Tick(10.0))
        a, b = nodes(ledger)
        assert ledger.timing.links.of(a, b).ms(50e6) == pytest.approx(1 + 400, rel=0.1)

    def test_measurements_teach_by_the_names_of_machines(self) -> None:
        ledger = two()
        for number in range(10):
            ledger.apply(ev.LinkMeasured("h2", "h1", float(number), 100_000_000, 800.0))
        ledger.apply(ev.Tick(11.0))
        a, b = nodes(ledger)
        assert ledger.timing.links.of(b, a).ms(100e6) == pytest.approx(800, rel=0.1)

    @pytest.mark.parametrize(("size", "took"), [(-1, 5.0), (10, 0.0), (10, float("nan")), (10, -3.0)])
    def test_nonsense_teaches_nothing(self, size: int, took: float) -> None:
        ledger = two()
        ledger.apply(ev.LinkMeasured("h1", "h2", 0.0, size, took))
        assert ledger.links_snapshot() == ()

    def test_step_times_are_the_same_with_other_links(self) -> None:
        step = StepCoefficients(10.0, 0.1, 0.1, 0.1)
        one = WorkerSpec(worker_id("a"), "http://h1", "vllm", ("m",), kv=KV, profile="x")
        ledger = fleet(one, step_priors={"x": step})
        before = ledger.timing
        ledger.apply(ev.LinkMeasured("h1", "h2", 0.0, 100_000_000, 800.0))
        after = ledger.timing
        assert after.links is not before.links
        assert dict(after) == dict(before)
        assert after.rows((worker_id("a"),)) is before.rows((worker_id("a"),))
        assert ledger.timing is after
