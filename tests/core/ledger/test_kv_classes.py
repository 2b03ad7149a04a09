from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.kv_classes import KvClasses
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.kv_shape import HandShake, KvShape, mismatch
from pointsman.core.model.request import Request
from pointsman.core.model.view import KV_GIVES, KV_PARTS, KV_TAKES, Column
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id

KV = KvShape(HandShake.VLLM_NIXL, 16, "float16", 1, "m@1", "0.20.0", 1000, ("nixl",))
SHAPES = st.builds(
    KvShape,
    st.sampled_from([HandShake.VLLM_NIXL, HandShake.SGLANG]),
    st.sampled_from([None, 16, 64]),
    tensor_parallel=st.sampled_from([None, 2, 4, 6]),
    transports=st.sampled_from([(), ("nixl",), ("shm", "tcp"), ("nixl", "tcp")]),
    gives=st.booleans(),
    takes=st.booleans(),
)


def spec(name: str, kv: KvShape | None = KV, **fields: object) -> WorkerSpec:
    defaults: dict[str, object] = {"url": f"http://{name}:1", "kind": "vllm", "models": ("m",)}
    return WorkerSpec(worker_id(name), kv=kv, **(defaults | fields))  # type: ignore[arg-type]


def fleet(*specs: WorkerSpec) -> Ledger:
    ledger = Ledger()
    for one in specs:
        ledger.apply(ev.WorkerJoined(one, 0.0))
        ledger.apply(ev.HealthRead(one.id, 0.0, True, True, "answers"))
    return ledger


def column(ledger: Ledger, name: Column, model: str = "m") -> list[int]:
    numbers: list[int] = ledger.view(Request("asks", model, 0.0, 1)).column(name).tolist()
    return numbers


class TestClasses:
    def test_workers_that_pass_no_kv_on_are_in_none(self) -> None:
        ledger = fleet(spec("a", None), spec("b", None))
        assert column(ledger, Column.KV_GROUP) == [0, 0]
        assert column(ledger, Column.KV_SIDES) == [0, 0]

    def test_workers_that_match_share_a_number_and_others_do_not(self) -> None:
        ledger = fleet(spec("a"), spec("b"), spec("c", replace(KV, block_size_tokens=64)), spec("d", None), spec("e"))
        a, b, c, d, e = column(ledger, Column.KV_GROUP)
        assert a == b == e
        assert len({a, c, d}) == 3
        assert d == 0

    def test_what_each_can_do_is_told_beside(self) -> None:
        ledger = fleet(spec("a", replace(KV, takes=False)), spec("b", replace(KV, gives=False, parts=True)), spec("c"))
        assert len(set(column(ledger, Column.KV_GROUP))) == 1
        assert column(ledger, Column.KV_SIDES) == [KV_GIVES, KV_TAKES + KV_PARTS, KV_GIVES + KV_TAKES]

    def test_models_have_classes_of_their_own_but_adapters_have_not(self) -> None:
        ledger = fleet(
            spec("a"),
            spec("b", models=("m", "lora"), adapters=("lora",)),
            spec("c", models=("other",)),
            spec("d", models=("x", "other")),
        )
        assert len(set(column(ledger, Column.KV_GROUP))) == 1
        assert len(set(column(ledger, Column.KV_GROUP, "other"))) == 1
        assert set(column(ledger, Column.KV_GROUP)) != set(column(ledger, Column.KV_GROUP, "other"))

    def test_one_model_may_have_several_names_of_which_all_members_share_one(self) -> None:
        ledger = fleet(
            spec("a", models=("alias", "m")),
            spec("b", models=("m",)),
            spec("c", models=("m", "z")),
            spec("d", models=("z",)),
        )
        a, b, c = column(ledger, Column.KV_GROUP)
        assert a == b == c
        assert column(ledger, Column.KV_GROUP, "z")[1] != c

    def test_one_that_tells_something_else_now_is_in_another_one(self) -> None:
        ledger = fleet(spec("a"), spec("b"))
        ledger.apply(ev.WorkerChanged(spec("a", replace(KV, dtype="bfloat16")), 1.0))
        a, b = column(ledger, Column.KV_GROUP)
        assert a != b
        ledger.apply(ev.WorkerLeft(worker_id("b"), 2.0, "test"))
        ledger.apply(ev.WorkerJoined(spec("b", replace(KV, dtype="bfloat16")), 3.0))
        assert len(set(column(ledger, Column.KV_GROUP))) == 1

    @given(st.lists(st.tuples(SHAPES, st.booleans()), max_size=12))
    def test_each_pair_of_a_class_matches_however_they_came_and_went(self, steps: list[tuple[KvShape, bool]]) -> None:
        classes, members = KvClasses(), dict[int, list[WorkerSpec]]()
        for number, (shape, leaves) in enumerate(steps):
            one = spec(f"w{number}", shape)
            of = classes.joined(one)
            members.setdefault(of, []).append(one)
            if leaves:
                classes.left(of, members[of].pop(0))
        for alike in members.values():
            for one in alike:
                for other in alike:
                    assert one.kv is not None
                    assert other.kv is not None
                    assert mismatch(replace(one.kv, gives=True), replace(other.kv, takes=True)) is None


class TestTokenBytes:
    def test_are_as_told_else_of_the_profile_else_unknown(self) -> None:
        silent = replace(KV, bytes_per_token=None)
        ledger = fleet(spec("a"), spec("b", silent, profile="h100/llama-8b"), spec("c", silent, profile="mine"))
        assert column(ledger, Column.KV_TOKEN_BYTES) == [1000, 131_072, 0]

    def test_are_learned_from_transfers_for_all_of_the_class(self) -> None:
        silent = replace(KV, bytes_per_token=None)
        ledger = fleet(spec("a", silent), spec("b", silent), spec("c", silent), spec("d", replace(silent, dtype="f8")))
        for number, size in enumerate((200_000, 100_000)):
            ledger.apply(ev.Admitted(Request(f"r{number}", "m", 0.0, 100), 0.0))
            ledger.apply(ev.Dispatched(f"r{number}", worker_id("b"), 0.0, prefill=ev.PrefillLeg(worker_id("a"))))
            ledger.apply(ev.PrefillEnded(f"r{number}", 1.0))
            ledger.apply(ev.TransferEnded(f"r{number}", 2.0, 100, size, 1.0))
            expected = (2_000, 1_750)[number]
            group = column(ledger, Column.KV_GROUP)
            told = column(ledger, Column.KV_TOKEN_BYTES)
            assert told[:3] == [expected] * 3
            assert (group[3], told[3]) == (group[3], 0 if group[3] != group[0] else expected)


class TestPairing:
    def pairing(self, *specs: WorkerSpec) -> list[tuple[WorkerId, str]]:
        return fleet(*specs).pairing(specs[0].id)

    def test_names_each_worker_with_which_it_can_not_share_requests_and_why(self) -> None:
        told = self.pairing(
            spec("p", role=Role.PREFILL),
            spec("q", replace(KV, block_size_tokens=64), role=Role.PREFILL),
            spec("d", replace(KV, block_size_tokens=64), role=Role.DECODE),
            spec("e", role=Role.DECODE),
            spec("f", None, role=Role.DECODE),
            spec("other", replace(KV, dtype="x"), models=("other",)),
        )
        assert [worker for worker, _ in told] == ["d/0", "f/0"]
        assert told[0][1] == "block sizes differ: 16 and 64"
        assert "f/0 passes no KV on" in told[1][1]

    def test_one_way_is_enough(self) -> None:
        assert self.pairing(spec("a", replace(KV, takes=False)), spec("b")) == []
        assert self.pairing(spec("a", replace(KV, takes=False)), spec("b", replace(KV, takes=False))) != []

    def test_fleets_without_any_are_silent_and_unknown_workers_an_error(self) -> None:
        assert self.pairing(spec("a", None), spec("b", None)) == []
        with pytest.raises(LedgerError, match="not in the fleet"):
            fleet().pairing(worker_id("a"))
