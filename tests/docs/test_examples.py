"""What the documents show works as shown."""

from __future__ import annotations

import random
import re
from pathlib import Path

from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import NO_TIMING
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.edge.configuration.loader import load_file
from pointsman.edge.serving.intake import EXPLAIN_HEADER, WORKER_HEADER
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.telemetry import names
from pointsman.edge.traces.profile_file import load_profile

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_example_policy_decides() -> None:
    (source,) = blocks("docs/policies.md", "python")
    assert len(source.splitlines()) <= 30
    space: dict[str, object] = {}
    exec(source, space)
    policy = PolicyRegistry([space["FewestKv"]()]).get("fewest_kv")  # type: ignore[operator]
    view = FleetView.of(["a/0", "b/0"], kv_tokens=[500, 100])
    assert policy.decide(Request("r", "m", 0.0, 1), view, NO_TIMING, 0.0, random.Random(0)).worker == "b/0"


def test_the_configuration_of_the_readme_is_accepted(tmp_path: Path) -> None:
    (text,) = blocks("README.md", "yaml")
    file = tmp_path / "pointsman.yaml"
    file.write_text(text)
    settings = FrontendSettings.of(load_file(file), {"GPU_B_KEY": "secret"})
    assert [source.name for source in settings.sources] == ["gpu-a", "gpu-b"]
    assert settings.sources[1].api_key == "secret"


def test_the_profile_of_the_calibration_page_is_accepted(tmp_path: Path) -> None:
    (text,) = blocks("docs/calibrate.md", "yaml")
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert load_profile(str(file)).name == "my-engine"


def test_every_policy_is_described() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    assert all(f"| `{name}` |" in page for name in PolicyRegistry().names())


def test_every_metric_is_listed() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    metrics = [value for value in vars(names).values() if isinstance(value, names.Metric)]
    assert len(metrics) > 20
    for metric in metrics:
        short = metric.name.removeprefix("pointsman_worker")
        assert metric.name in page or f"…{short}" in page, metric.name


def test_the_debug_headers_have_the_documented_names() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    assert EXPLAIN_HEADER.decode() in page
    assert WORKER_HEADER.decode() in page


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
