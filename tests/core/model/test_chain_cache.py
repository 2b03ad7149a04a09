from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.chain_cache import RUN_BLOCKS, ChainCache
from pointsman.core.model.token_keys import KeySpec, pack_tokens, token_block_keys


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 5 * RUN_BLOCKS), min_size=1, max_size=12),
    size=st.integers(1, 3),
    bigram=st.booleans(),
    lora=st.sampled_from([None, "adapter"]),
    extras=st.dictionaries(st.integers(0, 70), st.sampled_from([b"x", b"y"]), max_size=3),
    max_runs=st.integers(1, 4),
)
def test_it_never_changes_a_key(lengths, size, bigram, lora, extras, max_runs) -> None:
    cache, spec = ChainCache(max_runs), KeySpec(size, bigram)
    rng = random.Random(1)
    tokens = [rng.randrange(5) for _ in range(16 * RUN_BLOCKS)]
    for length in lengths:
        packed = pack_tokens(tokens[: length * size])
        for given_extras in ({}, extras):
            wanted = token_block_keys(packed, spec, lora, given_extras)
            assert cache.keys(packed, spec, lora, given_extras) == wanted
        assert len(cache) <= max_runs


def test_a_conversation_that_goes_on_computes_only_what_is_new() -> None:
    cache, spec = ChainCache(), KeySpec(4)
    tokens = list(range(RUN_BLOCKS * 4 * 10))
    cache.keys(pack_tokens(tokens[: RUN_BLOCKS * 4 * 8]), spec)
    assert (cache.hits, cache.misses) == (0, 8)
    cache.keys(pack_tokens(tokens), spec)
    assert (cache.hits, cache.misses) == (8, 10)


def test_the_least_recently_used_run_goes_first() -> None:
    cache, spec = ChainCache(max_runs=2), KeySpec(1)
    prompts = [pack_tokens([i] * RUN_BLOCKS) for i in range(3)]
    for prompt in (prompts[0], prompts[1], prompts[0], prompts[2], prompts[0]):
        cache.keys(prompt, spec)
    assert (cache.hits, cache.misses) == (2, 3)
