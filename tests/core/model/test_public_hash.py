"""Published values for block size 16, tokens 100, 101, …"""

from __future__ import annotations

import pytest

from pointsman.core.model.public_hash import public_seed, sequence_hashes
from pointsman.core.model.token_keys import KeySpec, pack_tokens

SPEC = KeySpec(16)
PLAIN = [10823191264391160519, 4102179227871607950, 18410735291254320318]


def test_a_plain_sequence() -> None:
    assert sequence_hashes(pack_tokens(range(100, 148)), SPEC, public_seed()) == PLAIN


def test_a_chain_goes_on_from_its_parent() -> None:
    assert sequence_hashes(pack_tokens(range(116, 148)), SPEC, public_seed(), PLAIN[0]) == PLAIN[1:]


@pytest.mark.parametrize(
    ("tokens", "spec", "lora", "namespace", "first"),
    [
        (48, SPEC, "my-lora", None, 10153739907802795719),
        (32, SPEC, None, "tenant-a", 7939687151982338459),
        (32, SPEC, "my-lora", "tenant-a", 14535092111898547688),
        (34, KeySpec(16, bigram=True), None, None, 15764913023364366116),
    ],
)
def test_adapters_namespaces_and_bigrams(tokens: int, spec: KeySpec, lora, namespace, first: int) -> None:
    hashes = sequence_hashes(pack_tokens(range(100, 100 + tokens)), spec, public_seed(lora, namespace))
    assert hashes[0] == first


def test_an_empty_part_is_an_absent_one() -> None:
    assert public_seed("", "") == public_seed(None, None) == 1337
