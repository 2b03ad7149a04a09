"""GPUs are asked with each probe; what nobody knows is said once and never taken for idle or busy."""

from __future__ import annotations

import logging
import random

import pytest

from pointsman.core.ledger.events import GpuRead, HealthRead
from pointsman.edge.cluster.engine_watch import EngineWatch
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.configuration.metrics_url import MetricsUrl
from pointsman.edge.engines.http import EngineHttp
from support.patient_probes import PatientProbes
from support.waiting import eventually

OFTEN = PatientProbes(interval_s=0.1)
DCGM = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 80\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 20\n'


@pytest.fixture
async def watched(make_engine, vllm_answers):
    """`watched(page, …)`: an engine, its exporter, and the readings that the ledger gets."""
    probers = []

    async def make(page: object, timing: ProbeTiming = OFTEN, **more):
        engine = await make_engine(vllm_answers, key="engine's key")
        exporter = await make_engine({"/gpus": page})
        source = WorkerSource(
            "a",
            engine.url,
            api_key="engine's key",
            gpu_metrics_url=MetricsUrl.parse(f"{exporter.url}/gpus"),
            gpus=more.pop("gpus", None),
        )
        events = []
        prober = Prober(events.append, lambda: 0.0, random.Random(1), timing=timing, **more)
        await prober.start([source])
        probers.append(prober)
        return prober, exporter, lambda: [event.use for event in events if isinstance(event, GpuRead)], events

    yield make
    for prober in probers:
        await prober.close()


async def test_the_page_is_read_without_the_engines_key(watched) -> None:
    _, exporter, uses, _ = await watched(DCGM, gpus=("0",))
    await eventually(uses)
    assert uses()[0] == 0.8
    assert exporter.asked[0].authorization is None


async def test_a_page_that_fails_is_unknown_and_said_once(watched, caplog) -> None:
    caplog.set_level(logging.INFO, "pointsman.cluster")
    prober, exporter, uses, _ = await watched(500)
    await eventually(lambda: len(uses()) > 2)
    assert set(uses()) == {None}
    (status,) = prober.statuses()
    assert "answered 500" in (status.gpu_unknown or "")
    assert status.load_unknown is None
    exporter.answers["/gpus"] = DCGM
    await eventually(lambda: uses()[-1] == 0.5)
    (status,) = prober.statuses()
    assert status.gpu_unknown is None
    said = [record.message for record in caplog.records if "GPUs" in record.message]
    assert len(said) == 2
    assert said[1].endswith("known again")


async def test_a_page_that_hangs_holds_up_a_probe_for_its_time_only(watched) -> None:
    prober, _, uses, events = await watched("hang", ProbeTiming(interval_s=0.5))
    await eventually(uses)
    assert uses()[0] is None
    assert "was not answered within" in (prober.statuses()[0].gpu_unknown or "")
    await eventually(lambda: any(type(event).__name__ == "MetricsRead" for event in events))


async def test_nobody_asks_where_it_is_switched_off(watched) -> None:
    _, exporter, uses, events = await watched(DCGM, collect_gpu_use=False)
    await eventually(lambda: sum(type(event).__name__ == "MetricsRead" for event in events) > 1)
    assert uses() == []
    assert exporter.asked == []


@pytest.mark.parametrize("collect", [True, False])
async def test_what_a_simulated_engine_tells_of_itself_counts(make_engine, session, vllm_answers, collect) -> None:
    vllm_answers["/metrics"] += 'pointsman_sim_busy_ratio{engine="0"} 0.7\n'
    engine = await make_engine(vllm_answers)
    events = []
    watch = EngineWatch(
        WorkerSource("a", engine.url),
        EngineHttp(session, engine.url),
        events.append,
        lambda: 0.0,
        random.Random(1),
        ProbeTiming(),
        collect_gpu_use=collect,
    )
    await watch.turn()
    assert [event.use for event in events if isinstance(event, GpuRead)] == ([0.7] if collect else [])


async def test_how_full_their_memory_is_comes_from_the_same_page(watched) -> None:
    full = 'DCGM_FI_DEV_FB_USED{gpu="0"} 60\nDCGM_FI_DEV_FB_FREE{gpu="0"} 20\n'
    _, exporter, uses, events = await watched(DCGM + full, gpus=("0",))
    await eventually(uses)
    assert next(event.memory for event in events if isinstance(event, GpuRead)) == 0.75
    exporter.answers["/gpus"] = 500
    mark = len(events)
    await eventually(lambda: any(isinstance(event, GpuRead) and event.use is None for event in events[mark:]))
    assert next(e.memory for e in events[mark:] if isinstance(e, GpuRead) and e.use is None) is None


_PLACES = ["pointsman.edge.cluster.gpu_watch.gpu_use", "pointsman.edge.engines.vllm.VllmAdapter.read_load"]


@pytest.mark.parametrize("place", _PLACES)
async def test_what_nobody_foresaw_in_a_page_hides_no_engine(watched, monkeypatch, caplog, place: str) -> None:
    def fails(*_: object) -> float:
        raise ValueError("a page that nobody foresaw")

    monkeypatch.setattr(place, fails)
    prober, _, _, events = await watched(DCGM)
    await eventually(lambda: sum(isinstance(event, HealthRead) and event.ready for event in events) > 2)
    (status,) = prober.statuses()
    assert "nobody foresaw" in f"{status.gpu_unknown} {status.load_unknown}"
    said = [record for record in caplog.records if "unknown from now on" in record.message]
    assert len(said) == 1
    assert said[0].exc_info
