"""The in-memory stores: the promises that memory can keep, one warning, and no fence."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from rulvar.core import memory
from rulvar.core.capabilities import has_fenced_journal, has_fenced_transcripts, has_leases
from rulvar.core.errors import ConfigError, JournalOrderViolation, StoreClosedError
from rulvar.core.memory import (
    EphemeralStoreWarning,
    MemoryJournalStore,
    MemoryStores,
    MemoryTranscriptStore,
)
from rulvar.core.records import BlobStat, JournalRecord, RunFilter, RunMeta
from rulvar.core.stores import Stores

pytestmark = pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=f'{{"seq":{seq}}}'.encode())


def row(run_id: str, status: str = "ok") -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at="then")


def test_journals_rows_and_blobs_are_kept() -> None:
    stores = MemoryStores()
    assert isinstance(stores, Stores)
    journal = MemoryJournalStore()
    journal.append("r", record(0))
    journal.append("r", record(4))
    with pytest.raises(JournalOrderViolation):
        journal.append("r", record(4))
    journal.put_meta(row("r"))
    journal.put_meta(row("a", "error"))
    assert journal.load("r") == (record(0), record(4))
    assert journal.load_after("r", 0, 5) == [record(4)]
    assert [m.run_id for m in journal.list_runs()] == ["a", "r"]
    assert journal.list_runs(RunFilter(statuses=("error",))) == (row("a", "error"),)
    assert journal.get_meta("r") == row("r")
    twin = journal.transcripts()
    twin.put("r/x", b"1")
    twin.put("s/x", b"22")
    assert twin.get("r/x") == b"1"
    assert twin.list_refs("s") == ("s/x",)
    assert twin.blob_info("s/x") == BlobStat(ref="s/x", size_bytes=2)
    assert journal.list_run_ids(None, 9) == ["a", "r", "s"]
    assert journal.list_run_ids("a", 1) == ["r"]
    journal.delete("r")
    assert journal.load("r") == ()
    assert journal.get_meta("r") is None
    assert twin.get("r/x") == b"1"
    twin.delete("r/x")
    twin.delete("r/x")
    assert journal.list_run_ids(None, 9) == ["a", "s"]


def test_nothing_is_promised_that_is_not_kept() -> None:
    with MemoryStores() as stores:
        assert not has_leases(stores.journal)
        journal: object = stores.journal
        transcripts: object = stores.transcripts
        assert not has_fenced_journal(journal)
        assert not has_fenced_transcripts(transcripts)


def test_every_argument_passes_the_front_door() -> None:
    journal, blobs = MemoryJournalStore(), MemoryTranscriptStore()
    for call in (
        lambda: journal.append("a/b", record(0)),
        lambda: journal.append("r", JournalRecord(seq=0, payload=b"")),
        lambda: journal.load(".."),
        lambda: journal.load_after("r", -2, 1),
        lambda: journal.load_after("r", 0, 0),
        lambda: journal.put_meta(row("")),
        lambda: journal.get_meta(""),
        lambda: journal.list_runs(RunFilter(limit=0)),
        lambda: journal.list_run_ids("", 1),
        lambda: journal.list_run_ids(None, 0),
        lambda: journal.delete(""),
        lambda: blobs.put("r", b""),
        lambda: blobs.put("r/x", "text"),  # type: ignore[arg-type]
        lambda: blobs.get("r"),
        lambda: blobs.blob_info("r"),
        lambda: blobs.list_refs("r/x"),
        lambda: blobs.delete("r"),
    ):
        with pytest.raises(ConfigError):
            call()


def test_closing_one_half_closes_both() -> None:
    stores = MemoryStores()
    stores.close()
    stores.close()
    with pytest.raises(StoreClosedError):
        stores.journal.load("r")
    with pytest.raises(StoreClosedError):
        stores.transcripts.get("r/x")


def test_where_the_warning_is_an_error_every_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_warned", False)
    for open_one in (MemoryStores, MemoryJournalStore, MemoryTranscriptStore):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(EphemeralStoreWarning, match="sqlite:///"):
                open_one()


WARN_ONCE = """
import warnings
from rulvar.core.memory import *
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    MemoryStores(); MemoryJournalStore(); MemoryTranscriptStore(); MemoryStores()
assert [w.category for w in caught] == [EphemeralStoreWarning], caught
"""


@pytest.mark.slow
def test_a_process_is_warned_once() -> None:
    subprocess.run([sys.executable, "-c", WARN_ONCE], timeout=60, check=True)
