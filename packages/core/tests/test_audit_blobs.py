"""What an audit says of blobs, from prepared stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from audit_journals import WORKED, prepared, record, row, scattered, start, step

from rulvar.core.audit import audit_run
from rulvar.core.journal import JournalEntry, encode_entry
from rulvar.core.records import JournalRecord, JsonMembers, RunMeta
from rulvar.core.testing import ManualClock, WatchedStores, reference_stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.stores import Stores


# --- blobs --------------------------------------------------------------------------------


def ours(*entries: dict[str, object]) -> Stores:
    begun = start()
    begun["value"] = cast("dict[str, object]", begun["value"]) | {"workflowSourceRef": "r/source"}
    stores = prepared([begun, *entries], row("running"))
    stores.transcripts.put("r/source", b"async def w(ctx): ...")
    return stores


def turns(seq: int, ref: int | None = None, summaries: Sequence[str] = ()) -> dict[str, object]:
    if ref is None:
        return {"seq": seq, "kind": "turns", "status": "running", "key": "loop"}
    value = {"ended": "done", "summaries": list(summaries)}
    return {"seq": seq, "kind": "turns", "status": "ok", "key": "loop", "ref": ref, "value": value}


def test_what_the_journal_refers_to_is_no_orphan() -> None:
    patch = {"ref": "r/patch/4"}
    stores = ours(
        turns(1),
        turns(2, ref=1, summaries=["r/summary/1/3"]),
        {"seq": 3, "kind": "worktree", "status": "running", "key": "wt"},
        {"seq": 4, "kind": "worktree", "status": "ok", "key": "wt", "ref": 3, "value": patch},
        turns(5),
    )
    for ref in ("r/summary/1/3", "r/patch/4", "r/ckpt/5", "r/summary/5/2"):
        stores.transcripts.put(ref, b"needed")
    assert audit_run(stores, "r").blobs == ()


def test_orphans_have_an_age_and_missing_ones_say_whether_they_are_needed() -> None:
    clock = ManualClock()
    stores = reference_stores(clock=clock)
    begun = start()
    begun["value"] = cast("dict[str, object]", begun["value"]) | {"workflowSourceRef": "r/source"}
    summaries = ["r/summary/1/3"]
    entries = [begun, turns(1), turns(2, ref=1, summaries=summaries), turns(3)]
    tree: dict[str, object] = {"kind": "worktree", "key": "wt"}
    entries.append(tree | {"seq": 4, "status": "running"})
    entries.append(tree | {"seq": 5, "status": "ok", "ref": 4, "value": {"ref": "r/patch/5"}})
    for entry in entries:
        stores.journal.append("r", record(entry))
    stores.journal.put_meta(row("running"))
    # What a complete loop no longer needs waits for pruning: its checkpoint, and a summary that
    # its answer does not name. One that only looks like one of the open loop's, one of no loop
    # and one of nobody are orphans.
    orphans = ("r/summary/3/x", "r/summary/03/1", "r/summary/2/1", "r/else")
    for ref in ("r/ckpt/1", "r/summary/1/2", *orphans):
        stores.transcripts.put(ref, b"12345")
    clock.advance(90_000)
    audit = audit_run(stores, "r", clock=clock)
    assert {(b.ref, b.age_ms, b.size_bytes) for b in audit.orphans} == {
        (ref, 90_000, 5) for ref in orphans
    }
    absent = {b.ref: b.required for b in audit.blobs if b.state == "missing"}
    # The summary that the complete loop names may have been pruned.
    assert absent == {"r/source": True, "r/patch/5": True, "r/ckpt/3": False}
    assert {blob.ref for blob in audit.missing} == {"r/source", "r/patch/5"}
    # A blob makes no row wrong, and somebody should look all the same.
    assert (audit.verdict, audit.sound) == ("consistent", False)


def test_without_blob_info_an_orphan_is_named_all_the_same() -> None:
    stores = scattered()
    (orphan,) = audit_run(WatchedStores(stores, without={"blob_info"}), "d-blob").blobs
    assert (orphan.ref, orphan.size_bytes, orphan.age_ms) == ("d-blob/x", None, None)


def test_another_engines_blobs_are_not_judged() -> None:
    stores = prepared(WORKED, row("running"), version=2)
    stores.transcripts.put("r/ckpt/1", b"theirs")
    assert audit_run(stores, "r").blobs == ()


def test_blobs_of_a_run_that_somebody_works_on_are_not_judged() -> None:
    stores = ours(step(1))
    stores.transcripts.put("r/patch/9", b"about to be named")
    stores.journal.acquire("r", "o")  # type: ignore[attr-defined]
    assert audit_run(stores, "r").blobs == ()


def test_rows_of_another_writer_are_judged_too() -> None:
    meta = RunMeta(
        run_id="r", status="ok", updated_at="yesterday", extra=JsonMembers({"cost": "1.50"})
    )
    audit = audit_run(prepared([start(), step(1)], meta), "r")
    assert (audit.verdict, audit.row) == ("stranded", meta)


def test_an_encoded_entry_of_ours_is_read_back_by_the_audit() -> None:
    stores = reference_stores()
    value = {"decisionType": "run_start", "workflow": "w", "genesis": "g"}
    for entry in (
        JournalEntry(seq=0, kind="decision", status="ok", value=value, epoch=1),
        JournalEntry(seq=1, kind="step", status="running", key="s", epoch=1),
    ):
        record = JournalRecord(seq=entry.seq, payload=encode_entry(entry))
        stores.journal.append("r", record)
    stores.journal.put_meta(row("cancelled"))
    assert audit_run(stores, "r").verdict == "stranded"
