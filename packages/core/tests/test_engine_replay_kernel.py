"""The replay kernel decides from the journal alone, one sequence of calls a scope."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rulvar.core.engine.kernel.replay import (
    Answered,
    Call,
    Dangling,
    Fresh,
    GivenUp,
    Replay,
    Waiting,
    given_up_after_ms,
)
from rulvar.core.errors import NonDeterminismError
from rulvar.core.journal import GIVEN_UP, RETRY, Calls, JournalEntry
from rulvar.core.journal.calls import branch_scope, maker_of

if TYPE_CHECKING:
    from rulvar.core.engine.kernel.replay import (
        Decision,
    )


def opened(
    seq: int, kind: str, key: str, ordinal: int = 0, scope: str = "", **more: object
) -> JournalEntry:
    entry = JournalEntry(
        seq=seq, kind=kind, status="running", scope=scope, key=key, ordinal=ordinal
    )
    return replace(entry, **more)  # type: ignore[arg-type] # members by name


def answered(seq: int, ref: int, value: object = None, status: str = "ok") -> JournalEntry:
    return JournalEntry(seq=seq, kind="step", status=status, ref=ref, value=value)


def given_up(seq: int, ref: int, after_ms: int = 5) -> JournalEntry:
    value = {"afterMs": after_ms}
    return JournalEntry(seq=seq, kind=GIVEN_UP, status="cancelled", ref=ref, value=value)


def retried(seq: int, *calls: int) -> JournalEntry:
    value = {"decisionType": RETRY, "calls": list(calls)}
    return JournalEntry(seq=seq, kind="decision", status="ok", value=value)


def fan(seq: int, branches: int, name: str = "fan") -> JournalEntry:
    return opened(seq, "parallel", name, value={"branches": branches})


def ask(replay: Replay, key: str, kind: str = "step", scope: str = "", **more: object) -> Decision:
    return replay.next(Call(kind, scope, key, **more))  # type: ignore[arg-type] # by name


def ask_fan(replay: Replay, branches: int) -> Decision:
    return replay.next(Call("parallel", "", "fan", branches=branches))


FAN = "/fan#0"


# --- what stands at a place ---------------------------------------------------------------------


def test_a_call_is_fresh_dangling_or_answered_by_what_the_journal_has() -> None:
    replay = Replay.of([opened(1, "step", "a"), answered(2, 1, "A"), opened(3, "step", "b")])
    first, second, third = ask(replay, "a"), ask(replay, "b"), ask(replay, "c")
    assert isinstance(first, Answered)
    assert first.answer.value == "A"
    assert isinstance(second, Dangling)
    assert second.opening.seq == 3
    assert isinstance(third, Fresh)


@pytest.mark.parametrize("kind", ["external", "timer"])
def test_a_suspension_without_an_answer_is_waited_for(kind: str) -> None:
    replay = Replay.of([opened(1, kind, "k")])
    assert isinstance(ask(replay, "k", kind), Waiting)
    assert [entry.seq for entry in replay.waiting()] == [1]


def test_ordinals_count_one_name_in_one_scope() -> None:
    replay = Replay()
    made = [("", "a"), ("", "a"), ("", "b"), (f"{FAN}[0]", "a")]
    decisions = []
    for seq, (scope, key) in enumerate(made, 1):
        decision = ask(replay, key, scope=scope)
        decisions.append(decision.call.ordinal)
        replay.landed(opened(seq, "step", key, decision.call.ordinal, scope))
    assert decisions == [0, 1, 0, 0]


def test_a_call_that_was_never_made_takes_no_number() -> None:
    replay = Replay()
    decision = ask(replay, "a")
    replay.not_made(decision.call)
    assert ask(replay, "a").call.ordinal == 0


def test_the_first_answer_wins() -> None:
    replay = Replay.of([opened(1, "external", "k")])
    assert replay.landed(answered(2, 1, "first"))
    assert not replay.landed(answered(3, 1, "second"))
    decision = ask(replay, "k", "external")
    assert isinstance(decision, Answered)
    assert decision.answer.value == "first"


def test_an_answer_to_nothing_is_no_answer() -> None:
    assert not Replay.of([opened(1, "step", "a")]).landed(answered(2, 77, "?"))


def test_what_was_drawn_is_its_own_answer() -> None:
    replay = Replay.of([JournalEntry(seq=1, kind="rand", status="ok", key="$random", value=0.5)])
    decision = ask(replay, "$random", "rand")
    assert isinstance(decision, Answered)
    assert decision.answer.value == 0.5


@pytest.mark.parametrize(
    "entry",
    [
        JournalEntry(seq=1, kind="hologram", status="running", key="a"),
        JournalEntry(seq=1, kind="hologram", status="ok", key="a", ref=0),
    ],
)
def test_an_entry_that_opens_or_answers_in_an_unknown_way_is_noted(entry: JournalEntry) -> None:
    assert Replay.of([entry]).calls.unknown is entry
    told = JournalEntry(seq=1, kind="telling", status="ok")
    assert Replay.of([told]).calls.unknown is None


# --- another way --------------------------------------------------------------------------------

TWO = [opened(1, "step", "a"), answered(2, 1, "A"), opened(3, "step", "b"), answered(4, 3, "B")]


@pytest.mark.parametrize(
    ("kind", "key"), [("external", "a"), ("step", "b"), ("step", "inserted"), ("parallel", "a")]
)
def test_another_call_where_an_opening_stands_is_refused(kind: str, key: str) -> None:
    with pytest.raises(NonDeterminismError) as caught:
        ask(Replay.of(TWO), key, kind)
    assert (caught.value.scope, caught.value.key, caught.value.ordinal) == ("", key, 0)
    assert "stands where the journal has step 'a' (seq 1)" in str(caught.value)


def test_a_removed_call_is_found_at_the_next_one() -> None:
    replay = Replay.of(TWO)
    with pytest.raises(NonDeterminismError, match="the journal has step 'a'"):
        ask(replay, "b")


def test_calls_that_were_not_asked_for_are_found_at_the_end() -> None:
    replay = Replay.of(TWO)
    ask(replay, "a")
    left_out = replay.unasked()
    assert left_out is not None
    assert left_out.seq == 3
    ask(replay, "b")
    assert replay.unasked() is None


def test_another_key_is_refused() -> None:
    replay = Replay.of([opened(1, "step", "a", call_key="x")])
    with pytest.raises(NonDeterminismError, match=r"has the key 'y' now, and had 'x'"):
        ask(replay, "a", call_key="y")
    with pytest.raises(NonDeterminismError, match="has the key None now"):
        ask(replay, "a")


def test_another_number_of_branches_is_refused() -> None:
    with pytest.raises(NonDeterminismError, match="has 3 branches now, and had 2"):
        ask_fan(Replay.of([fan(1, 2)]), 3)


# --- arguments ----------------------------------------------------------------------------------

FETCHES = [
    opened(1, "step", "fetch", 0, args_hash="a"),
    answered(2, 1),
    opened(3, "step", "fetch", 1, args_hash="b"),
    answered(4, 3),
]


def test_the_arguments_of_another_call_are_a_reordering() -> None:
    with pytest.raises(NonDeterminismError, match="give each a key"):
        ask(Replay.of(FETCHES), "fetch", args_hash="b")


def test_an_item_inserted_in_front_is_found_at_the_second_call() -> None:
    replay = Replay.of(FETCHES)
    first = ask(replay, "fetch", args_hash="new")
    assert isinstance(first, Answered)
    assert first.changed_args
    with pytest.raises(NonDeterminismError):
        ask(replay, "fetch", args_hash="a")


def test_an_item_inserted_before_the_only_one_is_found_before_anything_new_is_performed() -> None:
    replay = Replay.of(FETCHES[:2])
    assert isinstance(ask(replay, "fetch", args_hash="new"), Answered)
    with pytest.raises(NonDeterminismError):
        ask(replay, "fetch", args_hash="a")


def test_arguments_that_stand_nowhere_are_told_alone() -> None:
    replay = Replay.of(FETCHES)
    decisions = [ask(replay, "fetch", args_hash=each) for each in ("c", "d")]
    assert [getattr(each, "changed_args", None) for each in decisions] == [True, True]


@pytest.mark.parametrize(("before", "now"), [(None, "a"), ("a", None), ("a", "a"), (None, None)])
def test_arguments_that_do_not_encode_are_not_compared(before: str | None, now: str | None) -> None:
    replay = Replay.of([opened(1, "step", "fetch", args_hash=before), answered(2, 1)])
    decision = ask(replay, "fetch", args_hash=now)
    assert isinstance(decision, Answered)
    assert not decision.changed_args


def test_branches_are_reordered_where_siblings_have_the_arguments() -> None:
    journal = [
        fan(1, 2),
        opened(2, "step", "fetch", scope=f"{FAN}[0]", args_hash="a"),
        opened(3, "step", "fetch", scope=f"{FAN}[1]", args_hash="b"),
    ]
    replay = Replay.of(journal)
    ask_fan(replay, 2)
    with pytest.raises(NonDeterminismError, match="another order"):
        ask(replay, "fetch", scope=f"{FAN}[0]", args_hash="b")


def test_the_arguments_of_another_name_or_parallel_are_no_reordering() -> None:
    journal = [
        opened(1, "step", "other", args_hash="b"),
        answered(2, 1),
        opened(3, "step", "fetch", args_hash="a"),
        answered(4, 3),
    ]
    replay = Replay.of(journal)
    ask(replay, "other", args_hash="b")
    assert isinstance(ask(replay, "fetch", args_hash="b"), Answered)


# --- scopes -------------------------------------------------------------------------------------


def test_scopes_name_the_call_that_made_them() -> None:
    path = branch_scope("/out er#1[0]", "a/b#c[d]", 2, 3)
    assert maker_of(path) == ("/out er#1[0]", "a/b#c[d]", 2)
    assert maker_of("") is None


def test_a_new_call_in_a_branch_whose_parallel_is_answered_is_refused() -> None:
    replay = Replay.of(
        [fan(1, 1), opened(2, "step", "a", scope=f"{FAN}[0]"), answered(3, 2), answered(4, 1)]
    )
    ask_fan(replay, 1)
    assert isinstance(ask(replay, "a", scope=f"{FAN}[0]"), Answered)
    with pytest.raises(NonDeterminismError, match="was complete when seq 4 was journalled"):
        ask(replay, "b", scope=f"{FAN}[0]")


def test_a_new_call_in_a_branch_that_the_body_has_left_behind_is_refused() -> None:
    replay = Replay.of([fan(1, 1), opened(2, "step", "after")])
    ask_fan(replay, 1)
    with pytest.raises(NonDeterminismError, match="continues behind it, with step 'after'"):
        ask(replay, "b", scope=f"{FAN}[0]")


def test_what_a_branch_leaves_out_is_found_for_it_and_for_the_body() -> None:
    replay = Replay.of([fan(1, 2), opened(2, "step", "a", scope=f"{FAN}[1]"), answered(3, 2)])
    ask_fan(replay, 2)
    assert replay.unasked(f"{FAN}[0]") is None
    for scope in (f"{FAN}[1]", ""):
        left_out = replay.unasked(scope)
        assert left_out is not None
        assert left_out.seq == 2


def test_a_scope_is_not_mistaken_for_one_whose_name_it_begins() -> None:
    replay = Replay.of([fan(1, 11), opened(2, "step", "a", scope=f"{FAN}[10]")])
    assert replay.unasked(f"{FAN}[1]") is None


# --- patched ------------------------------------------------------------------------------------


def patched_entry(seq: int, name: str) -> JournalEntry:
    return JournalEntry(seq=seq, kind="patched", status="ok", key=name, value=True)


def test_patched_is_false_before_what_is_journalled_and_stays_so() -> None:
    replay = Replay.of(TWO)
    ask(replay, "a")
    assert replay.patched("", "new") is False
    ask(replay, "b")
    assert replay.patched("", "new") is False, "decided once per scope and name"
    assert replay.patched("", "newer") is None, "nothing stands behind this place"


def test_patched_that_is_journalled_is_true_there_and_later() -> None:
    replay = Replay.of([patched_entry(1, "new"), opened(2, "step", "a")])
    assert replay.patched("", "new") is True
    ask(replay, "a")
    assert replay.patched("", "new") is True


def test_patched_that_is_no_longer_asked_for_is_passed_over() -> None:
    replay = Replay.of([patched_entry(1, "x"), patched_entry(2, "y"), opened(3, "step", "a")])
    assert replay.patched("", "y") is True
    assert isinstance(ask(replay, "a"), Dangling)
    assert replay.patched("", "x") is True
    assert Replay.of([patched_entry(1, "x")]).unasked() is None


def test_patched_in_a_branch_that_is_complete_is_false() -> None:
    replay = Replay.of([fan(1, 1), answered(2, 1)])
    ask_fan(replay, 1)
    assert replay.patched(f"{FAN}[0]", "new") is False


def test_patched_counts_for_its_own_scope_alone() -> None:
    replay = Replay.of([fan(1, 2), opened(2, "step", "a", scope=f"{FAN}[0]")])
    ask_fan(replay, 2)
    assert replay.patched(f"{FAN}[0]", "new") is False
    assert replay.patched(f"{FAN}[1]", "new") is None


# --- given up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer_first", [True, False])
def test_a_giving_up_outranks_every_answer(answer_first: bool) -> None:
    answer, giving_up = answered(2, 1, "A"), given_up(3, 1, 40)
    both = [answer, giving_up] if answer_first else [giving_up, answer]
    decision = ask(Replay.of([opened(1, "step", "a"), *both]), "a")
    assert isinstance(decision, GivenUp)
    assert given_up_after_ms(decision.given_up) == 40


def test_a_call_inside_one_that_was_given_up_is_not_made() -> None:
    replay = Replay.of([fan(1, 1), given_up(2, 1), opened(3, "step", "after")])
    ask_fan(replay, 1)
    decision = ask(replay, "further", scope=f"{FAN}[0]")
    assert isinstance(decision, GivenUp)
    assert decision.opening is None
    ask(replay, "after")
    assert replay.unasked() is None


def test_a_firing_gives_up_what_it_names() -> None:
    block = opened(1, "timeout", "$timeout")
    firing = JournalEntry(seq=3, kind="timeout", status="error", ref=1, value={"calls": [2]})
    replay = Replay.of([block, opened(2, "step", "a"), firing])
    assert isinstance(ask(replay, "$timeout", "timeout"), Answered)
    assert isinstance(ask(replay, "a"), GivenUp)


# --- retries ------------------------------------------------------------------------------------


def test_a_retry_makes_the_failed_call_and_what_came_after_it_again() -> None:
    journal = [
        opened(1, "step", "paid"),
        answered(2, 1, "P"),
        opened(3, "step", "fails"),
        answered(4, 3, status="error"),
        opened(5, "step", "compensate"),
        answered(6, 5, "C"),
        retried(7, 3),
    ]
    replay = Replay.of(journal)
    assert isinstance(ask(replay, "paid"), Answered)
    assert isinstance(ask(replay, "fails"), Fresh)
    assert not replay.calls.by_seq.keys() & {3, 5}


def test_a_retry_that_names_nothing_leaves_everything() -> None:
    replay = Replay.of([*TWO, retried(5)])
    assert isinstance(ask(replay, "a"), Answered)
    assert isinstance(ask(replay, "b"), Answered)
    assert isinstance(ask(replay, "c"), Fresh)


def test_a_retry_in_a_branch_reopens_what_is_around_it_and_spares_siblings() -> None:
    journal = [
        opened(1, "step", "before"),
        answered(2, 1),
        fan(3, 2),
        opened(4, "step", "x", scope=f"{FAN}[0]"),
        answered(5, 4, status="error"),
        opened(6, "step", "cleanup", scope=f"{FAN}[0]"),
        answered(7, 6),
        opened(8, "step", "y", scope=f"{FAN}[1]"),
        answered(9, 8, "Y"),
        answered(10, 3, status="error"),
        opened(11, "step", "after"),
        answered(12, 11),
        retried(13, 4),
    ]
    replay = Replay.of(journal)
    assert isinstance(ask(replay, "before"), Answered)
    assert isinstance(ask_fan(replay, 2), Dangling)
    assert isinstance(ask(replay, "x", scope=f"{FAN}[0]"), Fresh)
    assert isinstance(ask(replay, "y", scope=f"{FAN}[1]"), Answered)
    assert isinstance(ask(replay, "after"), Fresh)


def test_a_failed_call_names_those_that_failed_beside_it() -> None:
    journal = [
        fan(1, 2),
        opened(2, "step", "x", scope=f"{FAN}[0]"),
        answered(3, 2, status="error"),
        opened(4, "step", "y", scope=f"{FAN}[1]"),
        answered(5, 4, status="error"),
        JournalEntry(seq=6, kind="parallel", status="error", ref=1, value={"failed": [2, 4]}),
    ]
    assert Calls.of(journal).failed_beside(2) == [2, 4]


def test_a_child_that_is_retried_keeps_its_opening_and_so_its_run() -> None:
    replay = Replay.of([opened(1, "child", "c"), answered(2, 1, status="error"), retried(3, 1)])
    decision = ask(replay, "c", "child")
    assert isinstance(decision, Dangling)
    assert decision.opening.seq == 1
    assert decision.retried is not None
    replay.landed(answered(4, 1, "C"))
    assert replay.answer_to(1) is not None


def test_a_block_around_a_retried_call_is_entered_again() -> None:
    journal = [
        opened(1, "timeout", "$timeout"),
        opened(2, "step", "a"),
        answered(3, 2, status="error"),
        answered(4, 1),
        retried(5, 2),
    ]
    replay = Replay.of(journal)
    block = ask(replay, "$timeout", "timeout")
    assert isinstance(block, Dangling)
    assert block.retried is not None
    assert isinstance(ask(replay, "a"), Fresh)


def test_a_second_retry_goes_by_what_the_first_has_left() -> None:
    journal = [
        opened(1, "step", "a"),
        answered(2, 1, status="error"),
        retried(3, 1),
        opened(4, "step", "a"),
        answered(5, 4, status="error"),
        retried(6, 4),
        opened(7, "step", "a"),
        answered(8, 7, "A"),
    ]
    replay = Replay.of(journal)
    decision = ask(replay, "a")
    assert isinstance(decision, Answered)
    assert decision.answer.value == "A"
    assert [one.seq for one in replay.tries_of(decision.opening)] == [7, 4, 1]
