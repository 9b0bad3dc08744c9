"""Looks that prove nothing, and what the checker says of a whole history."""

from __future__ import annotations

import pytest
from soak_stories import Story

from rulvar.conformance.soak.checker import judge
from rulvar.conformance.soak.history import DamagedReportError
from rulvar.conformance.soak.results import ViolationKind
from rulvar.core import Lease

# --- looks that prove nothing -----------------------------------------------------------------


def test_a_look_of_a_holder_who_was_superseded_meanwhile_is_not_held_against_anybody() -> None:
    story = Story()
    first = story.grant(1)
    second = story.grant(2, process=2)
    theirs = story.append(second, process=2)
    story.look(theirs, lease=first)
    story.look(theirs)
    verdict = judge(story.history())
    assert verdict.sound
    assert verdict.tally.contested_looks == 1


def test_a_grant_that_never_returned_does_not_blind_the_referee_for_ever() -> None:
    story = Story()
    story.attempt("acquire", None, process=3, target="w3", outcome="unknown")
    stalled = story.grant(2)
    unknown = story.append(stalled, outcome="unknown")
    successor = story.grant(3, process=2)
    story.look(lease=successor)
    story.grant(4, process=2)
    story.look(unknown)
    verdict = judge(story.history())
    assert [str(each.kind) for each in verdict.violations] == ["stale-acceptance"]


def test_a_look_that_a_grant_which_never_returned_may_have_preceded_proves_nothing() -> None:
    story = Story()
    holder = story.grant(1)
    story.attempt("seize", None, process=2, target="w2", outcome="unknown")
    early = story.append(Lease(run_id="r", owner="w2", epoch=2), process=2, outcome="unknown")
    story.look(early, lease=holder)
    story.look(early)
    verdict = judge(story.history())
    assert verdict.sound
    assert verdict.tally.contested_looks == 1


def test_the_tally_counts_what_was_tried_and_what_became_of_it() -> None:
    story = Story()
    lease = story.grant(1)
    one = story.append(lease)
    story.attempt("append", lease, outcome="nothing")
    there, absent = story.append(lease, outcome="unknown"), story.append(lease, outcome="unknown")
    row = story.attempt("put_meta", lease, outcome="unknown")
    story.attempt("renew", lease, outcome="unknown")
    story.refused("renew", lease, "expired")
    story.look(one, there, row=row)
    tally = judge(story.history()).tally
    assert tally.accepted == {("acquire", ""): 1, ("append", ""): 1}
    assert tally.refused == {("renew", ""): 1}
    assert tally.reasons == {"expired": 1}
    assert absent.outcome == "unknown"
    unknown = (tally.unknown_landed, tally.unknown_absent, tally.unknown_open)
    assert (tally.nothing, tally.grants, *unknown) == (1, 1, 2, 1, 1)
    assert (tally.runs, tally.looks, tally.contested_looks, tally.takeovers) == (1, 1, 0, 0)


def test_a_run_without_a_last_look_cannot_be_judged_when_the_storm_is_over() -> None:
    story = Story()
    story.append(story.grant(1))
    with pytest.raises(DamagedReportError, match="'r' was not read"):
        judge(story.history())
    assert judge(story.history(), ended=False).sound


def test_a_history_cut_at_an_instant_has_what_was_open_then_as_unknown() -> None:
    story = Story()
    lease = story.grant(1)
    open_one = story.append(lease)
    story.append(lease)
    assert open_one.returned_at is not None
    cut = story.history().until(open_one.returned_at - 1)
    assert [each.outcome for each in cut.attempts] == ["landed", "unknown"]


def test_a_violation_tells_the_grants_and_the_attempt_in_order() -> None:
    story = Story()
    stalled = story.grant(1)
    story.grant(2, process=2)
    late = story.append(stalled)
    story.look(late)
    [violation] = judge(story.history()).violations
    assert violation.kind is ViolationKind.STALE_ACCEPTANCE
    assert "begun after epoch 2 had been granted" in violation.words
    assert [line.startswith(">") for line in violation.timeline] == [False, False, True]
    assert "append 1.1.2 under epoch 1" in violation.timeline[-1]
