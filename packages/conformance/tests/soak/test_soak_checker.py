"""The checker: every class of violation is provoked, and a sound history is passed."""

from __future__ import annotations

from typing import Any

import pytest
from soak_stories import Story

from rulvar.conformance.soak.checker import judge
from rulvar.core import Lease


def kinds(story: Story) -> list[str]:
    return sorted({str(each.kind) for each in judge(story.history()).violations})


def test_a_tenure_a_takeover_and_a_zombie_that_is_refused_are_sound() -> None:
    story = Story()
    stalled = story.grant(1)
    story.look(lease=stalled)
    one, row = story.append(stalled), story.attempt("put_meta", stalled)
    blob = story.attempt("put_blob", stalled, target="turn")
    successor = story.grant(2, process=2)
    story.look(one, lease=successor, row=row, blobs={"turn": blob})
    story.refused("append", stalled, "superseded")
    two = story.append(successor, process=2)
    gone = story.attempt("delete_blob", successor, process=2, target="turn")
    story.look(one, two, row=row)
    verdict = judge(story.history())
    assert verdict.sound, verdict.violations
    assert gone.outcome == "landed"
    assert verdict.tally.takeovers == 1
    assert verdict.tally.refused["append", ""] == 1


# --- acceptances ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    ["append", "put_meta", "renew", "renew_all", "release", "revive", "seize_over", "delete"],
)
def test_a_landing_that_begins_after_a_later_grant_is_a_stale_acceptance(op: Any) -> None:
    story = Story()
    stalled = story.grant(1)
    story.grant(2, process=2)
    late = story.attempt(op, stalled, granted=3 if op in {"revive", "seize_over"} else None)
    if op == "append":
        story.look(late)
    else:
        story.look(row=late if op == "put_meta" else None)
    assert kinds(story) == ["stale-acceptance"]


@pytest.mark.parametrize("op", ["revive", "seize_over"])
def test_of_two_grants_over_the_same_lease_at_once_the_second_is_a_stale_acceptance(
    op: Any,
) -> None:
    story = Story()
    lease = story.grant(1)
    for granted in (2, 3):  # begun at once
        story.attempt(op, lease, process=granted, target="x", granted=granted, invoked_at=3)
    story.look()
    assert kinds(story) == ["stale-acceptance"]


@pytest.mark.parametrize("ending", ["release", "delete", "delete_whole_run"])
def test_a_landing_after_its_lease_has_ended_is_a_stale_acceptance(ending: Any) -> None:
    story = Story()
    lease = story.grant(1)
    story.attempt(ending, lease)
    late = story.append(lease)
    story.look(late)
    assert kinds(story) == ["stale-acceptance"]


def test_an_unknown_append_that_arrives_after_the_successor_looked_is_a_stale_acceptance() -> None:
    story = Story()
    stalled = story.grant(1)
    one = story.append(stalled)
    unknown = story.append(stalled, outcome="unknown")
    successor = story.grant(2, process=2)
    story.look(one, lease=successor)
    story.look(one, unknown)
    assert kinds(story) == ["stale-acceptance"]


@pytest.mark.parametrize("there", ["row", "blob"])
def test_an_unknown_row_or_blob_that_arrives_later_is_a_stale_acceptance(there: str) -> None:
    story = Story()
    stalled = story.grant(1)
    op: Any = "put_meta" if there == "row" else "put_blob"
    name = "" if there == "row" else "turn"
    late = story.attempt(op, stalled, target=name, outcome="unknown")
    story.look(lease=story.grant(2, process=2))
    if there == "row":
        story.look(row=late)
    else:
        story.look(blobs={"turn": late})
    assert kinds(story) == ["stale-acceptance"]


def test_a_landing_under_a_lease_that_nobody_was_granted_is_forged() -> None:
    story = Story()
    story.grant(1)
    forged = story.append(Lease(run_id="r", owner="nobody", epoch=1))
    story.look(forged)
    assert kinds(story) == ["forged-acceptance"]


def test_a_lease_that_was_granted_without_an_answer_can_be_seized_and_nothing_else() -> None:
    story = Story()
    story.attempt("acquire", None, target="w1", outcome="unknown")
    lease = Lease(run_id="r", owner="w1", epoch=1)
    story.attempt("seize_over", lease, process=2, target="w2", granted=2)
    story.look()
    assert kinds(story) == []
    never = Lease(run_id="r", owner="w3", epoch=2)
    story.attempt("seize_over", never, process=2, target="w2", granted=3)
    story.look()
    assert kinds(story) == ["forged-acceptance"]


# --- forks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "reason", "found"),
    [
        ("nothing", "forked", []),
        ("unknown", "", []),  # the child ended first
        ("landed", "", ["forked-acceptance"]),
        ("nothing", "busy", ["forked-acceptance"]),
        ("refused", "expired", ["forked-acceptance"]),
    ],
)
def test_what_a_forked_child_does_with_its_parents_stores_is_refused_or_wrong(
    outcome: Any, reason: str, found: list[str]
) -> None:
    story = Story()
    lease = story.grant(1)
    story.attempt(
        "renew", lease, process=1_001, life=1_001, death="forked", outcome=outcome, reason=reason
    )
    story.look()
    assert kinds(story) == found


def test_a_landing_with_the_lease_of_another_run_is_a_leak() -> None:
    story = Story()
    lease = story.grant(1)
    story.grant(1, process=2, run_id="s")
    foreign = story.attempt("append", lease, run_id="s")
    story.look()
    story.look(foreign, run_id="s")
    assert kinds(story) == ["leak-across-runs"]


# --- grants ---------------------------------------------------------------------------------


def test_one_epoch_granted_twice() -> None:
    story = Story()
    story.grant(1)
    story.grant(1, process=2)
    story.look()
    assert kinds(story) == ["duplicate-grant"]


def test_a_later_grant_with_a_lower_epoch() -> None:
    story = Story()
    story.grant(7)
    story.grant(3, process=2)
    story.look()
    assert kinds(story) == ["epoch-inversion"]


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["superseded", "released", "unknown", "held", "odd", "foreign-run"]
)
def test_a_live_lease_refused_for_a_reason_that_nothing_bears_out(reason: str) -> None:
    story = Story()
    story.refused("append", story.grant(1), reason)
    story.look()
    assert kinds(story) == ["wrong-reason"]


@pytest.mark.parametrize("reason", ["expired", "released", "unknown"])
def test_a_superseded_lease_is_reported_as_superseded_and_nothing_else(reason: str) -> None:
    story = Story()
    stalled = story.grant(1)
    story.grant(2, process=2)
    story.refused("append", stalled, reason)
    story.look()
    assert kinds(story) == ["wrong-reason"]


def test_every_reason_that_is_borne_out_is_accepted() -> None:
    story = Story()
    lease = story.grant(1)
    story.refused("renew", lease, "expired")
    story.attempt("acquire", None, process=2, target="w2", outcome="refused", reason="held")
    story.attempt("release", lease)
    story.refused("append", lease, "released")
    story.refused("append", Lease(run_id="r", owner="nobody", epoch=9), "unknown")
    story.refused("append", Lease(run_id="s", owner="w1", epoch=1), "foreign-run")
    story.grant(2, process=2)
    story.refused("append", lease, "superseded")
    story.look()
    assert judge(story.history()).sound


def test_a_seizure_over_a_lease_is_refused_where_that_is_not_the_present_one() -> None:
    story = Story()
    ended, live = story.grant(1), Lease(run_id="r", owner="w1", epoch=2)
    story.attempt("release", ended)
    story.refused("seize_over", ended, "superseded", process=2)
    story.grant(2)
    story.refused("seize_over", ended, "superseded", process=2)
    story.refused("seize_over", Lease(run_id="r", owner="no", epoch=2), "superseded", process=2)
    story.refused("seize_over", Lease(run_id="s", owner="w1", epoch=2), "foreign-run", process=2)
    story.look()
    assert judge(story.history()).sound
    for reason in ("superseded", "expired", "released", "held"):
        story.refused("seize_over", live, reason, process=2)
    story.look()
    assert [str(each.kind) for each in judge(story.history()).violations] == ["wrong-reason"] * 4


# --- what is stored -------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["append", "put_meta", "put_blob"])
def test_an_acknowledged_write_that_is_not_there_is_lost(what: Any) -> None:
    story = Story()
    story.attempt(what, story.grant(1), target="turn" if what == "put_blob" else "")
    story.look()
    assert kinds(story) == ["lost-write"]


def test_a_row_and_a_blob_that_are_older_than_the_last_acknowledged_are_lost_writes() -> None:
    story = Story()
    lease = story.grant(1)
    old_row, old_blob = (
        story.attempt("put_meta", lease),
        story.attempt("put_blob", lease, target="t"),
    )
    story.attempt("put_meta", lease)
    story.attempt("put_blob", lease, target="t")
    story.look(row=old_row, blobs={"t": old_blob})
    assert [str(each.kind) for each in judge(story.history()).violations] == ["lost-write"] * 2


def test_a_blob_whose_acknowledged_deletion_did_not_last_is_a_lost_write() -> None:
    story = Story()
    lease = story.grant(1)
    blob = story.attempt("put_blob", lease, target="t")
    story.attempt("delete_blob", lease, target="t")
    story.look(blobs={"t": blob})
    assert kinds(story) == ["lost-write"]


@pytest.mark.parametrize("what", ["journal", "row", "blob"])
def test_what_a_holder_saw_and_is_gone_later_is_lost(what: str) -> None:
    story = Story()
    stalled = story.grant(1)
    unknown = story.append(stalled, outcome="unknown")
    row = story.attempt("put_meta", stalled, outcome="unknown")
    blob = story.attempt("put_blob", stalled, target="t", outcome="unknown")
    story.look(unknown, lease=story.grant(2, process=2), row=row, blobs={"t": blob})
    story.look(
        *(() if what == "journal" else (unknown,)),
        row=None if what == "row" else row,
        blobs={} if what == "blob" else {"t": blob},
    )
    assert kinds(story) == ["lost-write"]


def test_a_refused_write_that_is_stored_all_the_same() -> None:
    story = Story()
    stalled = story.grant(1)
    story.grant(2, process=2)
    story.look(story.refused("append", stalled, "superseded"))
    assert kinds(story) == ["refused-landed"]


def test_a_write_that_was_busy_and_is_stored_all_the_same() -> None:
    story = Story()
    story.look(story.attempt("append", story.grant(1), outcome="nothing"))
    assert kinds(story) == ["refused-landed"]


def test_epochs_that_fall_along_a_journal() -> None:
    story = Story()
    stalled = story.grant(1)
    began = story.now()
    successor = story.grant(2, process=2)
    theirs = story.append(successor, process=2)
    mine = story.attempt("append", stalled, invoked_at=began)
    story.look(theirs, mine)
    assert kinds(story) == ["epoch-inversion"]


def test_a_record_of_an_epoch_that_was_not_granted_yet() -> None:
    story = Story()
    first = story.grant(1)
    second = Lease(run_id="r", owner="w2", epoch=2)
    early = story.append(second, process=2, outcome="unknown")
    story.look(early, lease=first)
    story.grant(2, process=2)
    story.look(early)
    assert "epoch-inversion" in kinds(story)


def test_one_attempt_in_the_journal_twice() -> None:
    story = Story()
    one = story.append(story.grant(1))
    story.look(one, one)
    assert kinds(story) == ["landed-twice"]


def test_entries_of_one_tenure_in_another_order() -> None:
    story = Story()
    lease = story.grant(1)
    one, two = story.append(lease), story.append(lease)
    story.look(two, one)
    assert kinds(story) == ["out-of-place"]


def test_an_unknown_append_out_of_its_place() -> None:
    story = Story()
    lease = story.grant(1)
    unknown, two = story.append(lease, outcome="unknown"), story.append(lease)
    story.look(two, unknown)
    assert kinds(story) == ["out-of-place"]


def test_bytes_that_differ_from_those_offered() -> None:
    story = Story()
    one = story.append(story.grant(1))
    story.look((str(one.id), "other bytes"))
    assert kinds(story) == ["divergent-bytes"]


@pytest.mark.parametrize("borne", ["", "9.9.9", "not an id"])
def test_a_record_that_nobody_attempted(borne: str) -> None:
    story = Story()
    story.grant(1)
    story.look((borne, "bytes"))
    assert kinds(story) == ["invented"]


def test_a_row_that_bears_the_id_of_an_append_was_not_attempted() -> None:
    story = Story()
    one = story.append(story.grant(1))
    story.look(one, row=one)
    assert kinds(story) == ["invented"]


@pytest.mark.parametrize("what", ["journal", "row", "blob", "name"])
def test_what_was_written_elsewhere_is_a_leak(what: str) -> None:
    story = Story()
    story.grant(1)
    other = story.grant(1, process=2, run_id="s")
    one = story.append(other, process=2)
    row = story.attempt("put_meta", other, process=2, run_id="s")
    blob = story.attempt("put_blob", other, process=2, run_id="s", target="t")
    mine = story.attempt("put_blob", Lease(run_id="r", owner="w1", epoch=1), target="t")
    story.look(
        *((one,) if what == "journal" else ()),
        row=row if what == "row" else None,
        blobs={"t": blob if what == "blob" else mine} | ({"u": mine} if what == "name" else {}),
    )
    story.look(one, row=row, blobs={"t": blob}, run_id="s")
    assert kinds(story) == ["leak-across-runs"]


# --- deletion -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["journal", "row", "blob"])
def test_what_a_deletion_removed_is_there_again(what: str) -> None:
    story = Story()
    lease = story.grant(1)
    one, row = story.append(lease), story.attempt("put_meta", lease)
    blob = story.attempt("put_blob", lease, target="t")
    story.attempt("delete_whole_run", lease)
    story.look(
        *((one,) if what == "journal" else ()),
        row=row if what == "row" else None,
        blobs={"t": blob} if what == "blob" else {},
    )
    assert kinds(story) == ["deleted-came-back"]


def test_a_plain_deletion_leaves_the_blobs() -> None:
    story = Story()
    lease = story.grant(1)
    story.append(lease)
    blob = story.attempt("put_blob", lease, target="t")
    story.attempt("delete", lease)
    story.look(blobs={"t": blob})
    assert judge(story.history()).sound


def _before_a_deletion(outcome: Any) -> tuple[Story, Any, Any, Any]:
    story = Story()
    lease = story.grant(1)
    one, row = story.append(lease), story.attempt("put_meta", lease)
    blob = story.attempt("put_blob", lease, target="t")
    story.attempt("delete_whole_run", lease, outcome=outcome)
    return story, one, row, blob


def test_an_unknown_deletion_may_have_removed_all_or_nothing() -> None:
    story, one, row, blob = _before_a_deletion("unknown")
    story.look(one, row=row, blobs={"t": blob})
    assert judge(story.history()).sound
    story, *_ = _before_a_deletion("unknown")
    story.look()
    assert judge(story.history()).sound


@pytest.mark.parametrize("left", ["journal", "row", "blob", "all but the row"])
def test_an_unknown_deletion_that_left_a_part(left: str) -> None:
    story, one, row, blob = _before_a_deletion("unknown")
    story.look(
        *((one,) if left in {"journal", "all but the row"} else ()),
        row=row if left == "row" else None,
        blobs={"t": blob} if left in {"blob", "all but the row"} else {},
    )
    assert kinds(story) == ["half-deleted"]
