"""Every argument of every call is checked before anything else: on a closed store, too."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.core.errors import ConfigError, StoreClosedError
from rulvar.core.records import JournalRecord, Lease, RunFilter, RunMeta
from rulvar.stores import sqlite
from rulvar.stores.sqlite import SqliteStore, SqliteStores, SqliteTranscripts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORD = JournalRecord(seq=0, payload=b'{"seq":0}')
META = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")
LEASE = Lease(run_id="run", owner="owner", epoch=1)
NO_LEASE: Any = Lease(run_id="run", owner="", epoch=1)
NO_RUN = "a/b"
NO_REF = "run/../other"

STORE: list[Callable[[SqliteStore], object]] = [
    lambda store: store.append(NO_RUN, RECORD),
    lambda store: store.append("run", JournalRecord(seq=0, payload=b'{"seq":1}')),
    lambda store: store.append("run", RECORD, lease=NO_LEASE),
    lambda store: store.load(NO_RUN),
    lambda store: store.load_after(NO_RUN, 0, 1),
    lambda store: store.load_after("run", -2, 1),
    lambda store: store.load_after("run", 0, 0),
    lambda store: store.put_meta(RunMeta(run_id=NO_RUN, status="ok", updated_at="-")),
    lambda store: store.put_meta(META, lease=NO_LEASE),
    lambda store: store.get_meta(NO_RUN),
    lambda store: store.list_runs(RunFilter(limit=0)),
    lambda store: store.list_run_ids(NO_RUN, 1),
    lambda store: store.list_run_ids(None, 0),
    lambda store: store.delete(NO_RUN),
    lambda store: store.delete("run", lease=NO_LEASE),
    lambda store: store.delete_whole_run(NO_RUN),
    lambda store: store.delete_whole_run("run", lease=NO_LEASE),
    lambda store: store.acquire(NO_RUN, "owner"),
    lambda store: store.acquire("run", ""),
    lambda store: store.renew(NO_LEASE),
    lambda store: store.release(NO_LEASE),
    lambda store: store.revive(NO_LEASE),
    lambda store: store.seize(NO_RUN, "owner"),
    lambda store: store.seize("run", ""),
    lambda store: store.raise_epoch(NO_RUN, 1),
    lambda store: store.raise_epoch("run", 2**53),
    lambda store: store.get_lease(NO_RUN),
    lambda store: store.list_leases(NO_RUN, 1),
    lambda store: store.list_leases(None, 0),
]
TWIN: list[Callable[[SqliteTranscripts], object]] = [
    lambda twin: twin.put(NO_REF, b""),
    lambda twin: twin.put("run/x", "text"),  # type: ignore[arg-type] # a wrong one, on purpose
    lambda twin: twin.put("run/x", b"", lease=NO_LEASE),
    lambda twin: twin.get(NO_REF),
    lambda twin: twin.list_refs(NO_RUN),
    lambda twin: twin.delete(NO_REF),
    lambda twin: twin.delete("run/x", lease=NO_LEASE),
    lambda twin: twin.blob_info(NO_REF),
]


def closed() -> SqliteStore:
    store = SqliteStore(":memory:")
    store.close()
    return store


@pytest.mark.parametrize("call", STORE)
def test_a_wrong_argument_is_refused_before_anything_is_looked_at(
    call: Callable[[SqliteStore], object],
) -> None:
    with pytest.raises(ConfigError):
        call(closed())


@pytest.mark.parametrize("call", TWIN)
def test_so_is_one_of_the_twins(call: Callable[[SqliteTranscripts], object]) -> None:
    with pytest.raises(ConfigError):
        call(closed().transcripts())


def test_that_a_store_is_closed_comes_before_whose_lease_it_is() -> None:
    with pytest.raises(StoreClosedError):
        closed().append("other", RECORD, lease=LEASE)
    with pytest.raises(StoreClosedError):
        closed().transcripts().put("other/x", b"", lease=LEASE)


def test_a_pair_is_opened_with_the_options_of_the_store_and_closes_it(tmp_path: Path) -> None:
    assert signature(SqliteStores.__init__) == signature(SqliteStore.__init__)
    with SqliteStores(tmp_path / "runs.db", lease_ttl_ms=9_000, durability="normal") as stores:
        journal, transcripts = stores.journal, stores.transcripts
        assert isinstance(journal, SqliteStore)
        assert isinstance(transcripts, SqliteTranscripts)
        assert (journal.lease_ttl_ms, journal.durability) == (9_000, "normal")
        assert journal.fencing_domain == transcripts.fencing_domain
    with pytest.raises(StoreClosedError):
        journal.load("run")


def test_every_name_of_the_package_is_loaded_when_it_is_asked_for() -> None:
    for name in sqlite.__all__:
        assert getattr(sqlite, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'SqliteStor'"):
        sqlite.SqliteStor  # type: ignore[attr-defined] # noqa: B018
