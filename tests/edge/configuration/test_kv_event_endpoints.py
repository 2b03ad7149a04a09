from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.execution_group import KvEventEndpoints
from pointsman.edge.configuration.loader import load_file

HEAD = "execution-group:\n  nodes:\n    - url: http://10.0.0.7:8000\n      kv_events: "


@pytest.fixture
def load(tmp_path):
    def load(text: str):
        path = tmp_path / "c.yaml"
        path.write_text(HEAD + text + "\n")
        return load_file(path).execution_group.nodes[0].kv_events

    return load


def test_where_an_engines_events_are(load):
    said = load("{endpoint: 'tcp://*:5557', replay_endpoint: 'tcp://10.0.0.7:5558', topic: kv, bind: true}")
    assert said == KvEventEndpoints(
        endpoint="tcp://*:5557", replay_endpoint="tcp://10.0.0.7:5558", topic="kv", bind=True
    )
    assert load("{topic: ''}") == KvEventEndpoints(topic="")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{bind: true}", "kv_events.bind.*endpoint is missing"), ("{port: 5}", "port"), ("{endpoint: ''}", "endpoint")],
)
def test_what_cannot_be_is_named(load, text, message):
    with pytest.raises(ConfigError, match=message):
        load(text)
