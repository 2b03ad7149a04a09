"""Rollouts and shadows in a configuration."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.rollout import Rollout
from pointsman.edge.configuration.routing import Routing
from pointsman.edge.configuration.share import Share
from pointsman.edge.configuration.tree import ConfigTree


def routing(text: str) -> Routing:
    return load_text(f"routing:\n  {text}\n", "c.yaml", ConfigTree).routing


def test_a_rollout_and_shadows_are_read() -> None:
    read = routing(
        "{policy: prefix, route_key: tenant, rollout: {policy: kv, share: 12.5%, by: session}, shadow: [random]}"
    )
    assert read.rollout == Rollout(policy="kv", share=Share(0.125), by=By.SESSION)
    assert read.shadow == ("random",)
    default = routing("{policy: prefix, rollout: {policy: kv}}").rollout
    assert default is not None
    assert (default.share.part, default.by, default.auto_rollback, default.worse_by.part) == (0.05, None, True, 0.05)
    assert routing("{policy: prefix}").rollout is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{rollout: {policy: kv, share: 101%}}", "c.yaml:2: routing.rollout.share: expected a share from 0% to 100%"),
        ("{rollout: {policy: kv, share: 5}}", "routing.rollout.share: expected a share from 0% to 100%.*not 5"),
        ("{rollout: {share: 5%}}", "routing.rollout.policy is missing"),
        ("{policy: kv, rollout: {policy: kv}}", "routing.rollout.policy: kv decides all requests already"),
        ("{rollout: {policy: kv, by: user}}", "routing.rollout.by: expected one of session, request"),
        ("{rollout: {policy: kv, by: session}}", "routing.rollout.by: session needs routing.route_key: .*header"),
        ("{rollout: {policy: session}}", "routing.rollout.policy: session needs routing.route_key"),
        ("{policy: kv, shadow: [random, kv]}", r"routing.shadow\[1\]: kv decides already"),
        ("{policy: kv, shadow: [random, random]}", r"routing.shadow\[1\]: random is named twice"),
        ("{shadow: [session]}", r"routing.shadow\[0\]: session needs routing.route_key"),
        ("{rollout: {policy: kv, shares: 5%}}", "routing.rollout.shares: unknown key; did you mean share"),
    ],
)
def test_what_can_not_be_is_refused_by_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        routing(text)
