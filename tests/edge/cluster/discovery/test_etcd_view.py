"""What is known of etcd's keys, by listings and watches in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.cluster.discovery.etcd_view import EtcdView
from pointsman.edge.cluster.etcd.client import Changes, Listing
from pointsman.edge.cluster.etcd.messages import Event, KeyValue

GRACE_MS = 30_000.0


def view_of() -> EtcdView:
    return EtcdView(lambda value: value == b"leaves", GRACE_MS)


def listing(revision: int, cluster_id: int = 1, **values: bytes) -> Listing:
    entries = tuple(KeyValue(name.encode(), value, 1, 1) for name, value in values.items())
    return Listing(revision, cluster_id, entries)


def put(name: str, value: bytes, revision: int) -> Changes:
    return Changes(revision, (Event(KeyValue(name.encode(), value, 1, revision)),))


def gone(name: str, revision: int) -> Changes:
    return Changes(revision, (Event(KeyValue(name.encode(), mod_revision=revision), "DELETE"),))


def test_listing_then_watch() -> None:
    view = view_of()
    assert view.listed(listing(5, a=b"1"), 0, 0.0)
    view.changed(put("b", b"2", 6), 0.0)
    view.changed(put("a", b"3", 7), 0.0)
    assert view.values == {b"a": b"3", b"b": b"2"}
    assert view.revision == 7


def test_who_vanishes_is_kept_for_a_while() -> None:
    view = view_of()
    view.listed(listing(5, a=b"1", b=b"2"), 0, 0.0)
    view.changed(gone("a", 6), 1_000.0)
    assert view.values == {b"a": b"1", b"b": b"2"}
    assert view.kept == {b"a"}
    assert view.next_ms == 31_000.0
    assert view.tick(30_999.0) == ()
    assert view.tick(31_000.0) == (b"a",)
    assert view.values == {b"b": b"2"}
    assert view.next_ms is None


def test_who_said_so_leaves_at_once() -> None:
    view = view_of()
    view.listed(listing(5, a=b"leaves", b=b"leaves"), 0, 0.0)
    view.changed(gone("a", 6), 0.0)
    assert view.values == {b"b": b"leaves"}
    view.listed(listing(7), 6, 0.0)
    assert view.values == {}


def test_who_comes_back_was_never_away() -> None:
    view = view_of()
    view.listed(listing(5, a=b"1", b=b"2"), 0, 0.0)
    view.changed(gone("a", 6), 0.0)
    view.changed(put("a", b"9", 7), 0.0)
    view.changed(gone("b", 8), 0.0)
    view.listed(listing(9, a=b"9", b=b"2"), 8, 0.0)
    assert view.kept == frozenset()
    assert view.tick(10 * GRACE_MS) == ()
    assert view.values == {b"a": b"9", b"b": b"2"}


def test_wiped_and_filled_again() -> None:
    """Revisions begin again; that is seen whether or not the new etcd says that it is another one."""
    for cluster_id in (1, 2):
        view = view_of()
        view.listed(listing(500, a=b"1", b=b"2", c=b"3"), 0, 0.0)
        assert view.listed(listing(1, cluster_id), 500, 0.0)
        assert len(view.values) == 3
        view.listed(listing(2, cluster_id, a=b"1"), 1, 10_000.0)
        view.changed(put("b", b"2", 3), 20_000.0)
        assert view.kept == {b"c"}
        assert view.tick(30_000.0) == (b"c",)
        assert view.values == {b"a": b"1", b"b": b"2"}
        assert view.revision == 3


def test_a_listing_that_a_watch_has_overtaken_says_nothing() -> None:
    view = view_of()
    view.listed(listing(5, a=b"1"), 0, 0.0)
    asked = view.revision
    view.changed(put("b", b"2", 6), 0.0)
    assert not view.listed(listing(5, a=b"1"), asked, 0.0)
    assert view.values == {b"a": b"1", b"b": b"2"}


def test_the_time_begins_again_when_etcd_can_be_read_again() -> None:
    view = view_of()
    view.listed(listing(5, a=b"1"), 0, 0.0)
    view.changed(gone("a", 6), 0.0)
    view.returned(100_000.0)
    assert view.tick(100_001.0) == ()
    assert view.next_ms == 100_000.0 + GRACE_MS


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "hear", "list", "ask"]), st.sampled_from("abc"), st.integers(0, 3)),
    max_size=40,
)


@given(STEPS)
def test_in_the_end_it_knows_what_etcd_holds(steps: list[tuple[str, str, int]]) -> None:
    """A store with a history; the watch is late by any number of changes, listings arrive late too."""
    store: dict[str, KeyValue] = {}
    history: list[Event] = []
    heard = 0
    asked: tuple[int, Listing] | None = None
    view = EtcdView(lambda value: True, GRACE_MS)
    view.listed(Listing(1, 1, ()), 0, 0.0)

    def change(event: Event) -> None:
        history.append(event)

    for kind, name, number in steps:
        revision = len(history) + 2
        if kind == "put":
            store[name] = KeyValue(name.encode(), b"%d" % number, 1, revision)
            change(Event(store[name]))
        elif kind == "delete" and name in store:
            del store[name]
            change(Event(KeyValue(name.encode(), mod_revision=revision), "DELETE"))
        elif kind == "hear":
            # A watch is begun anew after a listing that had news; what it told already comes twice then.
            for event in history[heard : heard + number]:
                if event.kv.mod_revision > view.revision:
                    view.changed(Changes(event.kv.mod_revision, (event,)), 0.0)
            heard = min(heard + number, len(history))
        elif kind == "ask":
            asked = (view.revision, Listing(len(history) + 1, 1, tuple(store.values())))
        elif kind == "list" and asked is not None:
            view.listed(asked[1], asked[0], 0.0)
            asked = None
    for event in history[heard:]:
        if event.kv.mod_revision > view.revision:
            view.changed(Changes(event.kv.mod_revision, (event,)), 0.0)
    assert view.values == {kv.key: kv.value for kv in store.values()}


def test_a_watch_that_lags_behind_a_listing_says_nothing() -> None:
    """Else what it tells late would bring back an engine that the listing knew to be gone."""
    view = view_of()
    view.listed(listing(5), 0, 0.0)
    view.listed(listing(9, b=b"2"), 5, 0.0)
    view.changed(put("a", b"1", 6), 0.0)
    view.changed(put("b", b"1", 7), 0.0)
    assert view.values == {b"b": b"2"}
    view.changed(put("a", b"3", 10), 0.0)
    assert view.values == {b"a": b"3", b"b": b"2"}
    # An etcd that was made anew counts from the beginning.
    view.listed(listing(2, cluster_id=2, b=b"2", a=b"3"), 10, 0.0)
    view.changed(put("a", b"4", 3), 0.0)
    assert view.values[b"a"] == b"4"
