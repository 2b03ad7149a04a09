from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.gpus import gpu_names
from pointsman.core.timing.links import Link, host_link, link, link_names, network_link, node_link


def test_all_links_have_a_speed_and_are_found_by_name() -> None:
    speeds = {name: link(name).gb_per_s for name in link_names()}
    assert speeds["nvlink"] > speeds["infiniband-ndr"] > speeds["roce"] > speeds["100gbe"] > speeds["25gbe"] > 0


def test_a_transfer_takes_the_floor_and_its_bytes() -> None:
    # 8,192 tokens of a 70B model, 327,680 bytes each, over 40 GB/s.
    assert link("infiniband-ndr").transfer_ms(8192 * 327_680) == pytest.approx(67.12, abs=0.01)
    assert link("roce:5ms").transfer_ms(0) == 5
    assert link("12.5GB/s:0.5ms").transfer_ms(12.5e6) == 1.5
    assert link("2GB/s").floor_ms == link("roce").floor_ms


def test_gpus_bring_their_links() -> None:
    assert network_link("h100", 4).gb_per_s == 4 * link("infiniband-ndr").gb_per_s
    assert node_link("h100").gb_per_s == 450
    assert node_link("rtx4090").gb_per_s == 32
    assert host_link("h100").gb_per_s == 50
    for name in gpu_names():
        assert min(network_link(name).gb_per_s, node_link(name).gb_per_s, host_link(name).gb_per_s) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rocee", "link 'rocee' is not known; did you mean 'roce'"),
        ("fast", "Known: nvlink, .*; or a speed such as 12.5GB/s"),
        ("12.5", "is not known"),
        ("xGB/s", "is not known"),
        ("roce:5", "the floor is not a time in ms, such as roce:0.5ms"),
        ("0GB/s", "gb_per_s must be above 0"),
        ("roce:-1ms", "floor_ms must not be negative"),
        ("roce:infms", "floor_ms must .* be finite, not inf"),
        ("infGB/s", "above 0 and finite, not inf"),
    ],
)
def test_what_is_not_a_link_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        link(text)


def test_a_link_without_speed_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be above 0 and finite, not nan"):
        Link("odd", float("nan"))
