"""Each verdict, from prepared stores: what a journal supports, and what a row says."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from audit_journals import (
    T1,
    T2,
    WAITING,
    WORKED,
    abandon,
    external,
    prepared,
    record,
    row,
    settle,
    start,
    step,
)

from rulvar.core.audit import RowChange, audit_run, audit_runs
from rulvar.core.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
)
from rulvar.core.records import JournalRecord
from rulvar.core.testing import WatchedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.records import RunMeta
    from rulvar.core.stores import Stores
    from rulvar.core.testing import StoreCall


DIED = {"decisionType": "recovered", "count": 1, "segment": 1}
RECOVERED: dict[str, object] = {"seq": 2, "kind": "decision", "status": "ok", "value": DIED}
ATTEMPTED: dict[str, object] = {
    "seq": 3,
    "kind": "attempt",
    "status": "ok",
    "value": {"seq": 1, "attempt": 2},
}

CASES: dict[str, tuple[list[dict[str, object]], RunMeta | None, str, str | None]] = {
    # Consistent: the row says what the journal supports.
    "settled": ([*WORKED, settle(3, "ok")], row("ok"), "consistent", None),
    "suspended": ([*WAITING, settle(2, "suspended")], row("suspended"), "consistent", None),
    "interrupted": ([start(), step(1)], row("running"), "consistent", None),
    "row-only": ([], row("running"), "consistent", None),
    "row-only-terminal": ([], row("ok"), "consistent", None),
    "nothing": ([], None, "consistent", None),
    "resolved-since": (
        [*WAITING, settle(2, "suspended"), step(3, ref=1)],
        row("suspended"),
        "consistent",
        None,
    ),
    "gave-up-waiting": (
        [start(), external(1), settle(2, "ok")],
        row("ok"),
        "consistent",
        None,
    ),
    "retry-begun": (
        [*WORKED, settle(3, "error")],
        row("running", segments=2),
        "consistent",
        None,
    ),
    "exhausted": (
        [start(), step(1), RECOVERED, ATTEMPTED, settle(4, "exhausted")],
        row("exhausted"),
        "consistent",
        None,
    ),
    "retry-of-an-exhausted-run-begun": (
        [start(), step(1), settle(2, "exhausted")],
        row("running", segments=2),
        "consistent",
        None,
    ),
    "died-and-recovered": (
        [start(), step(1), RECOVERED, ATTEMPTED],
        row("running", segments=2),
        "consistent",
        None,
    ),
    "resume-begun": (
        [*WAITING, settle(2, "suspended")],
        row("running", segments=2),
        "consistent",
        None,
    ),
    "at-work-after-a-settle": (
        [*WORKED, settle(3, "error"), step(4)],
        row("running", segments=2),
        "consistent",
        None,
    ),
    "sleeping-and-no-worker-would-wake-it": (
        [start(), external(1, deadlineAt=T2), settle(2, "suspended")],
        row("running"),
        "consistent",
        None,
    ),
    # Meta-behind: the row lags behind a settle, or contradicts it.
    "crash-before-the-row-of-an-exhausted-run": (
        [start(), step(1), RECOVERED, ATTEMPTED, settle(4, "exhausted")],
        row("running"),
        "meta-behind",
        "exhausted",
    ),
    "crash-before-the-row": ([*WORKED, settle(3, "ok")], row("running"), "meta-behind", "ok"),
    "other-outcome": ([*WORKED, settle(3, "ok")], row("error"), "meta-behind", "ok"),
    "over-ok-nothing-begins": (
        [*WORKED, settle(3, "ok")],
        row("running", segments=2),
        "meta-behind",
        "ok",
    ),
    "suspended-over-ok": ([*WORKED, settle(3, "ok")], row("suspended"), "meta-behind", "ok"),
    "terminal-over-suspended": (
        [*WAITING, settle(2, "suspended", segment=2)],
        row("ok"),
        "meta-behind",
        "suspended",
    ),
    "crash-while-suspending": (
        [*WAITING, settle(2, "suspended")],
        row("running"),
        "meta-behind",
        "suspended",
    ),
    "terminal-over-a-sleep": (
        [start(), external(1, deadlineAt=T2), settle(2, "suspended")],
        row("ok"),
        "meta-behind",
        "running",
    ),
    "terminal-over-a-sleep-that-the-row-carries": (
        [start(), external(1, deadlineAt=T2), settle(2, "suspended")],
        row("ok", wake_at=T2),
        "meta-behind",
        "suspended",
    ),
    # Stranded: a terminal row over live work.
    "stale-settle": (
        [*WORKED, settle(3, "suspended"), step(4)],
        row("ok"),
        "stranded",
        "running",
    ),
    "worked-on-and-answered": (
        [*WORKED, settle(3, "error"), step(4), step(5, ref=4)],
        row("error"),
        "stranded",
        "running",
    ),
    "attempted-and-dangling": (
        [start(), step(1), RECOVERED, ATTEMPTED],
        row("ok"),
        "stranded",
        "running",
    ),
    "unsettled-and-dangling": ([start(), step(1)], row("ok"), "stranded", "running"),
    "dangling-beats-waiting": (
        [start(), external(1), step(2)],
        row("cancelled"),
        "stranded",
        "running",
    ),
    # Suspect: nobody can tell from here.
    "unsettled-and-waiting": (WAITING, row("ok"), "suspect", None),
    "no-row": ([*WORKED, settle(3, "ok")], None, "suspect", None),
    "another-incarnation": ([*WORKED, settle(3, "ok")], row("ok", genesis="h"), "suspect", None),
    # Without a settle, structure is all there is.
    "unsettled-and-done": (WORKED, row("ok"), "consistent", None),
    "abandoned": ([start(), step(1), abandon(2, 1)], row("ok"), "consistent", None),
    "abandoned-with-what-was-inside": (
        [start(), step(1), step(2, scope="agent:1"), external(3, scope="agent:1"), abandon(4, 1)],
        row("ok"),
        "consistent",
        None,
    ),
    "abandoned-child": (
        [start(), step(1, value={"childScope": "wf:c:0"}), step(2, scope="wf:c:0"), abandon(3, 1)],
        row("ok"),
        "consistent",
        None,
    ),
    "abandoned-elsewhere": (
        [start(), step(1), step(2, scope="agent:10"), abandon(3, 1)],
        row("ok"),
        "stranded",
        "running",
    ),
    "abandoned-after-the-settle": (
        [*WORKED, settle(3, "ok"), step(4), abandon(5, 4)],
        row("ok"),
        "consistent",
        None,
    ),
    # The other opening of the same call stands for the first.
    "opened-again": (
        [start(), step(1, key="a"), step(2, key="a"), step(3, ref=2, key="a")],
        row("ok"),
        "consistent",
        None,
    ),
    # Damaged.
    "epochs-fall": (
        [start(), step(1, epoch=2), step(2, ref=1, epoch=1)],
        row("running"),
        "damaged",
        None,
    ),
    "epochs-fall-far-apart": (
        [start(), step(1, epoch=3), step(2), step(3, ref=2, epoch=2)],
        row("running"),
        "damaged",
        None,
    ),
    "its-beginning-is-gone": ([*WORKED[1:], settle(3, "ok")], row("ok"), "damaged", None),
    "answers-what-comes-later": ([start(), step(1, ref=1)], row("running"), "damaged", None),
    "member-of-another-type": ([start(), step(1, epoch="2")], row("running"), "damaged", None),
    "entries-without-epoch-prove-nothing": (
        [start(), step(1, epoch=2), step(2, ref=1), step(3, epoch=2)],
        row("running"),
        "consistent",
        None,
    ),
}


@pytest.mark.parametrize(("entries", "meta", "verdict", "status"), CASES.values(), ids=list(CASES))
def test_a_prepared_run_gets_its_verdict(
    entries: list[dict[str, object]], meta: RunMeta | None, verdict: str, status: str | None
) -> None:
    audit = audit_run(prepared(entries, meta), "r")
    assert audit.verdict == verdict, audit.findings
    assert (audit.change.status if audit.change else None) == status
    assert (audit.change is not None) == (verdict in {"meta-behind", "stranded"})


@pytest.mark.parametrize(
    ("entries", "meta", "verdict", "status"),
    [case for case in CASES.values() if case[2] != "damaged"],
    ids=[name for name, case in CASES.items() if case[2] != "damaged"],
)
def test_the_other_engines_journals_are_judged_by_the_same_structure(
    entries: list[dict[str, object]], meta: RunMeta | None, verdict: str, status: str | None
) -> None:
    audit = audit_run(prepared(entries, meta, version=2), "r")
    assert audit.verdict == verdict, audit.findings
    assert (audit.change.status if audit.change else None) == status
    assert any(f.code == "other-hash-version" for f in audit.findings) == bool(entries)


def test_the_other_engines_journals_begin_as_they_like() -> None:
    audit = audit_run(prepared([*WORKED[1:], settle(3, "ok")], row("ok"), version=2), "r")
    assert audit.verdict == "consistent", audit.findings


def test_a_change_takes_its_time_from_the_journal() -> None:
    behind = audit_run(prepared([*WORKED, settle(3, "ok")], row("running")), "r")
    assert behind.change == RowChange(status="ok", updated_at=T2)
    stranded = audit_run(prepared([*WORKED, step(3)], row("ok")), "r")
    # The last entry that has a time is the answer: the opening after it has none.
    assert stranded.change == RowChange(status="running", updated_at=T1)


def test_an_unknown_kind_that_was_begun_is_live_work() -> None:
    entries = [start(), {"seq": 1, "kind": "plan", "status": "running", "key": "p"}]
    assert audit_run(prepared(entries, row("ok")), "r").verdict == "stranded"
    approval = [start(), {"seq": 1, "kind": "approval", "status": "suspended", "key": "p"}]
    assert audit_run(prepared(approval, row("ok")), "r").verdict == "suspect"


def test_a_settle_that_says_no_status_is_none() -> None:
    entries = [*WORKED, settle(3, "ok"), settle(4, "")]
    assert audit_run(prepared(entries, row("running")), "r").journal_status == "ok"


def test_a_regressed_count_of_segments_is_noted_and_no_divergence() -> None:
    audit = audit_run(prepared([*WORKED, settle(3, "ok", segment=2)], row("ok")), "r")
    assert audit.verdict == "consistent"
    assert [finding.code for finding in audit.findings] == ["segments-behind"]


# --- what cannot be read ------------------------------------------------------------------


def answering(
    stores: Stores, answers: dict[tuple[str, str], Callable[[], object]], **options: frozenset[str]
) -> WatchedStores:
    """Have some reads of some runs answered otherwise."""

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        answer = answers.get((call.method, call.run_id or ""))
        return answer() if answer is not None else perform()

    return WatchedStores(stores, around=around, **options)


def refuse(error: Exception) -> Callable[[], object]:
    def raise_it() -> object:
        raise error

    return raise_it


def test_an_unreadable_journal_is_damaged_and_hides_no_other() -> None:
    stores = prepared([*WORKED, settle(3, "ok")], row("ok"))
    for run_id in ("a", "z"):
        stores.journal.put_meta(row("running", run_id))
    corrupt = StoreCorruptError("record 7 cannot be read", run_id="r", position=7)
    damaged = answering(stores, {("load", "r"): refuse(corrupt)})
    verdicts = {audit.run_id: audit.verdict for audit in audit_runs(damaged)}
    assert verdicts == {"a": "consistent", "r": "damaged", "z": "consistent"}
    (finding,) = audit_run(damaged, "r").findings
    assert (finding.code, finding.position) == ("journal-unreadable", 7)
    assert audit_run(damaged, "r").entries is None


def test_a_disk_error_on_one_run_hides_no_other() -> None:
    stores = prepared([start()], row("running"))
    stores.journal.put_meta(row("running", "a"))
    broken = answering(stores, {("load", "a"): refuse(StoreError("the disk reports an error"))})
    assert [a.verdict for a in audit_runs(broken)] == ["damaged", "consistent"]


@pytest.mark.parametrize("error", [StoreBusyError("locked"), StoreClosedError("closed")])
def test_a_store_that_cannot_answer_at_all_is_no_verdict(error: StoreError) -> None:
    for method in ("load", "get_meta"):
        stores = answering(prepared([start()], row("running")), {(method, "r"): refuse(error)})
        with pytest.raises(type(error)):
            audit_run(stores, "r")


def test_an_unreadable_row_is_damaged() -> None:
    corrupt = StoreCorruptError("the row cannot be read", run_id="r")
    stores = answering(prepared([start()], None), {("get_meta", "r"): refuse(corrupt)})
    audit = audit_run(stores, "r")
    assert audit.verdict == "damaged"
    assert [finding.code for finding in audit.findings] == ["row-unreadable"]


@pytest.mark.parametrize(
    ("method", "code"), [("get_lease", "lease-unreadable"), ("list_refs", "blobs-unreadable")]
)
def test_an_unreadable_lease_or_list_of_blobs_is_damaged_and_hides_no_other(
    method: str, code: str
) -> None:
    stores = prepared([start()], row("running"))
    for run_id in ("q", "s"):
        stores.journal.append(run_id, JournalRecord(seq=0, payload=b'{"seq":0,"kind":"note"}'))

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == method and call.run_id == "r":
            message = "a column of its row has another type"
            raise StoreCorruptError(message, run_id="r")
        return perform()

    found = list(audit_runs(WatchedStores(stores, around=around)))
    assert [audit.run_id for audit in found] == ["q", "r", "s"]
    damaged = found[1]
    assert (damaged.verdict, damaged.change) == ("damaged", None)
    assert [finding.code for finding in damaged.findings] == [code]
    assert "another type" in damaged.findings[0].message


def test_records_out_of_order_and_not_json_are_damaged_each_with_its_place() -> None:
    records = [record(start()), record(step(5)), JournalRecord(seq=4, payload=b"{}, 7")]
    stores = answering(prepared([], row("running")), {("load", "r"): lambda: records})
    findings = audit_run(stores, "r").findings
    assert [(f.code, f.seq, f.position) for f in findings] == [
        ("order", 4, 2),
        ("entry-unreadable", 4, 2),
    ]
    assert audit_run(stores, "r").verdict == "damaged"


def test_a_journal_of_nothing_but_damage_is_named_in_a_bounded_report() -> None:
    records = [JournalRecord(seq=at, payload=b"[]") for at in range(1_000)]
    stores = answering(prepared([], row("running")), {("load", "r"): lambda: records})
    assert len(audit_run(stores, "r").findings) == 10


def test_an_id_that_no_call_would_take_is_damaged_and_hides_no_other() -> None:
    stores = prepared([start()], row("running"))
    odd = [f"a/{number:04}" for number in range(600)]

    def inventory(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method != "list_run_ids":
            return perform()
        after, limit = cast("tuple[str | None, int]", call.arguments)
        assert after is None or "/" not in after
        return [i for i in [*odd, "r", "s/1"] if after is None or i > after][:limit]

    found = list(audit_runs(WatchedStores(stores, around=inventory)))
    assert [audit.run_id for audit in found] == [*odd, "r", "s/1"]
    assert {audit.verdict for audit in found if "/" in audit.run_id} == {"damaged"}
    assert [a.verdict for a in found if a.run_id == "r"] == ["consistent"]
