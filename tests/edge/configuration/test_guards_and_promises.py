"""Keys for what policies are told: guards, classes of promises, weights, caps, places, GPUs."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.slo import Slo
from pointsman.edge.configuration.gpu_name import GpuName
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.metrics_url import MetricsUrl
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.settings import FrontendSettings

WHOLE = """\
control-plane:
  topology: {host: h1, zone: a}
  topology_levels: [host, rack, zone]
execution-group:
  nodes:
  - {url: "http://a:1", weight: 2, max_in_flight: 8, topology: {host: h2, zone: a}}
  - {url: "http://b:1", gpu_metrics_url: "http://b:9400", gpus: [0, "GPU-1"], topology: {host: h1, zone: b}}
  - {url: "http://c:1", topology: {host: h1, rack: r9}}
routing:
  guards: {gpu_utilization_threshold: 0.8, kv_headroom: 5%, max_topology_distance: 2}
  slo_classes: {interactive: {ttft: 500ms, tpot: 50ms}, batch: {ttft: 1m}}
  default_slo_class: batch
"""


def load(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def test_everything_reaches_the_front_end() -> None:
    settings = FrontendSettings.of(load(WHOLE))
    a, b, c = settings.sources
    assert (a.weight, a.max_in_flight, a.topology_distance, a.gpu_metrics_url) == (2.0, 8, 1, None)
    assert (b.weight, b.max_in_flight, b.topology_distance) == (1.0, None, 3)
    assert (b.gpu_metrics_url, b.gpus) == ("http://b:9400/metrics", ("0", "GPU-1"))
    assert c.topology_distance == 0  # its rack is known, the front end's is not
    assert settings.guards == Guards(0.8, 0.05, 2)
    assert settings.slo_classes == {
        "interactive": Slo(500.0, 50.0, "interactive"),
        "batch": Slo(60_000.0, None, "batch"),
    }
    assert settings.default_slo_class == "batch"
    assert settings.collect_gpu_use


def test_guards_are_off_unless_asked_for() -> None:
    assert FrontendSettings.of(ConfigTree()).guards == NO_GUARDS
    off = "routing:\n  guards: {gpu_utilization_threshold: none, kv_headroom: none, max_topology_distance: none}"
    assert FrontendSettings.of(load(off)).guards == NO_GUARDS


NODE = "execution-group:\n  nodes:\n  - url: http://a:1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "routing:\n  guards:\n    gpu_utilization_threshold: 80",
            "c.yaml:3: routing.guards.gpu_utilization_threshold: ",
        ),
        (
            "routing:\n  guards: {gpu_utilization_threshold: 80%}",
            "expected a number from 0.01 to 1, or none, not '80%'",
        ),
        ("routing:\n  guards: {kv_headroom: 0.05}", "expected a share from 0% to 100%"),
        ("routing:\n  guards: {max_topology_distance: -1}", "expected an integer of at least 0, or none, not -1"),
        (
            "routing:\n  guards: {max_topology_distance: 1}",
            "c.yaml:2: routing.guards.max_topology_distance: control-plane.topology_levels is missing",
        ),
        (
            "metrics: {collect_gpu_utilization: false}\nrouting:\n  guards: {gpu_utilization_threshold: 0.8}",
            "routing.guards.gpu_utilization_threshold: metrics.collect_gpu_utilization is false",
        ),
        ("routing:\n  slo_classes: {fast: {}}", "c.yaml:2: routing.slo_classes.fast.ttft: is missing and so is tpot"),
        ("routing:\n  slo_classes: {fast: {ttft: 500}}", "routing.slo_classes.fast.ttft: expected a duration above 0"),
        ("routing:\n  slo_classes: {fast: {tft: 5ms}}", "slo_classes.fast.tft: unknown key; did you mean ttft?"),
        (
            "routing:\n  slo_classes: {fast: {ttft: 5ms}}\n  default_slo_class: slow",
            "c.yaml:3: routing.default_slo_class: slow is none of slo_classes; known: fast",
        ),
        (NODE + "    weight: 0", "nodes[0].weight: expected a number from 0.001 to 1000, not 0"),
        (
            NODE + "    max_in_flight: 0",
            "nodes[0].max_in_flight: expected an integer from 1 to 1000000000, or none, not 0",
        ),
        (
            NODE + "    topology: {rack: r1}",
            "c.yaml:4: execution-group.nodes[0].topology.rack: rack is none of control-plane.topology_levels; there",
        ),
        (
            "control-plane:\n  topology_levels: [host]\n  topology: {zone: a}",
            "c.yaml:3: control-plane.topology.zone: zone is none of control-plane.topology_levels; these are host",
        ),
        ("control-plane:\n  topology_levels: [host, host]", "topology_levels[1]: host is named twice"),
        (NODE + "    gpus: [0]", "c.yaml:4: execution-group.nodes[0].gpus: gpu_metrics_url is missing"),
        (NODE + "    gpu_metrics_url: b:9400", "gpu_metrics_url: expected the URL of a page of metrics"),
        (NODE + "    gpu_metrics_url: http://u:p@b:9400", "without user and password"),
        (NODE + "    gpu_metrics_url: http://b\n    gpus: [first]", "gpus[0]: expected the number of a GPU"),
        (NODE + "    gpu_metrics_url: http://b\n    gpus: []", "gpus: is empty; name at least 1"),
    ],
)
def test_fault(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in str(caught.value)


def test_pages_of_metrics_have_a_base_and_a_path() -> None:
    url = MetricsUrl.parse(" https://Host:9400/gpu/metrics?x=1 ")
    assert (url.base, url.page) == ("https://host:9400", "/gpu/metrics?x=1")
    assert MetricsUrl.parse("http://h").page == "/metrics"


@pytest.mark.parametrize("value", [True, -1, 1.5, "", "gpu", "GPU-\n1"])
def test_what_is_no_gpu(value: object) -> None:
    with pytest.raises(ValueError, match="the number of a GPU"):
        GpuName.parse(value)
