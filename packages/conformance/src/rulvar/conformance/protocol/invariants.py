"""What must hold whatever happens: the fence table, as sentences that can fail.

None of them looks at the store's own tombstone or lease row to judge a call: they look at the
*truth*, which is kept beside the model and is nothing but what was answered so far: the highest
epoch that was granted or asked for, who was granted it, whether it was ended, and how much of
its time has passed. So a guard that is taken away cannot take its own judge with it.

They stand in the order of their gravity. `INVARIANTS` judges every single step by what a caller
can see of it; `INNER` are about what nobody can see, and hold of the protocol as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rulvar.conformance.protocol.state import (
    ABSENT,
    EXPIRED,
    MUTATIONS,
    NOBODY,
    RENEWED,
    STALE,
    LeaseRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.protocol.state import Action, Answer, LeaseValue, Run, State

__all__ = [
    "INNER",
    "INVARIANTS",
    "RECOVERY",
    "WORDS",
    "Invariant",
    "Moment",
    "Truth",
    "begin_truth",
    "due",
]


class Truth(NamedTuple):
    """What is so of one run, from the answers alone.

    ``holder`` is the owner and epoch of the lease that was granted last, None once it was
    ended; ``age`` is in halves of a time to live.
    """

    high: int = 0
    holder: tuple[int, int] | None = None
    age: int = 0

    def live(self) -> bool:
        """Whether somebody holds the run."""
        return self.holder is not None and self.age < EXPIRED

    def lets(self, lease: LeaseValue) -> bool:
        """Whether this lease of the run is the live one."""
        return self.live() and self.holder == (lease.owner, lease.epoch)

    def after(self, action: Action, answer: Answer) -> Truth:
        """Return the truth after an answered action on this run."""
        if answer.word == "granted":
            return Truth(max(self.high, answer.epoch), (action.grantee, answer.epoch), 0)
        if answer.word == "passed":
            return self._replace(age=min(EXPIRED, max(0, self.age + action.more)))
        if answer.word != "landed":
            return self
        if action.call == "raise_epoch":
            return Truth(max(self.high, action.more))
        if action.call in {"release", "delete", "delete_whole_run"}:
            return Truth(self.high)
        renewed = action.call == "renew" or any(self.lets(lease) for lease in action.leases)
        return self._replace(age=0) if renewed else self


def begin_truth(runs: int) -> tuple[Truth, ...]:
    """Return the truth before anything happened."""
    return tuple(Truth() for _ in range(runs))


class Moment(NamedTuple):
    """One step: the state before it, what is so, what was done and answered, the state after."""

    before: State
    truth: Truth
    action: Action
    answer: Answer
    after: State

    def runs(self) -> tuple[Run, Run]:
        """Return the run that the action is about, before and after."""
        return self.before.runs[self.action.run], self.after.runs[self.action.run]

    def judged(self) -> bool:
        """Whether it is a mutation that was answered."""
        done = self.action.phase in {"call", "commit"}
        return done and self.action.call in MUTATIONS


_NO = ("refused", "out of order")
_NOTHING = (*_NO, "begun", "died")
WORDS = ("granted", "landed", *_NOTHING, "passed")


class Invariant(NamedTuple):
    """One sentence, and what says that a step keeps it.

    It can only fail where one of ``words`` was answered; one that is ``of_change`` only where
    something is different afterwards.
    """

    name: str
    sentence: str
    holds: Callable[[Moment], bool]
    words: tuple[str, ...] = WORDS
    of_change: bool = False


def due(moment: Moment) -> str:
    """Return the reason that the lease is to be refused with, in the contract's order, or ''."""
    lease = moment.action.lease
    if lease is None:
        return ""
    if lease.run != moment.action.run:
        return "foreign-run"
    why = _why(moment.truth, lease)
    if moment.action.call == "seize":
        return "" if why in {"", "expired"} else "superseded"
    return why


def _why(truth: Truth, lease: LeaseValue) -> str:
    """Return why a lease of this run is dead, or ''."""
    if lease.epoch > truth.high:
        return "unknown"
    if lease.epoch < truth.high:
        return "superseded"
    if truth.holder is None:
        return "released"
    if truth.holder[0] != lease.owner:
        return "unknown"
    return "expired" if truth.age >= EXPIRED else ""


# --- the sentences --------------------------------------------------------------------------


def _nothing_after(moment: Moment) -> bool:
    lease = moment.action.lease
    if lease is None or lease.run != moment.action.run or lease.epoch >= moment.truth.high:
        return True
    before, after = moment.runs()
    return moment.answer.word not in {"landed", "granted"} and before.visible() == after.visible()


def _only_live(moment: Moment) -> bool:
    lease = moment.action.lease
    if lease is None or not moment.judged():
        return True
    return lease.run == moment.action.run and moment.truth.lets(lease)


def _over_the_present(moment: Moment) -> bool:
    over = moment.action.lease
    return moment.action.call != "seize" or over is None or not due(moment)


def _each_renewed(moment: Moment) -> bool:
    if moment.action.call != "renew_all":
        return True
    truth = moment.truth
    before, after = moment.runs()
    said = [_why(truth, lease) or RENEWED for lease in moment.action.leases]
    row = before.row
    if RENEWED in said and truth.holder is not None:
        row = LeaseRow(*truth.holder, 0)
    return moment.answer.reason == ", ".join(said) and after == before._replace(row=row)


def _epochs_grow(moment: Moment) -> bool:
    return moment.answer.epoch > moment.truth.high


def _one_holder(moment: Moment) -> bool:
    return moment.action.call == "seize" or not moment.truth.live()


def _refused_is_nothing(moment: Moment) -> bool:
    return [run.visible() for run in moment.before.runs] == [
        run.visible() for run in moment.after.runs
    ]


def _journal_epochs(moment: Moment) -> bool:
    for run in moment.after.runs:
        fenced = [epoch for epoch in run.journal if epoch != NOBODY]
        if fenced != sorted(fenced):
            return False
    return True


def _journal_order(moment: Moment) -> bool:
    return moment.action.call != "append" or moment.action.more != STALE


def _live_lands(moment: Moment) -> bool:
    if not moment.judged() or due(moment):
        return True
    return moment.action.more == STALE and moment.answer.word == "out of order"


def _free_is_granted(moment: Moment) -> bool:
    free = not moment.truth.live()
    if moment.action.call == "revive":
        free = due(moment) == "expired"
    elif moment.action.call == "seize":
        free = not due(moment)
    elif moment.action.call != "acquire":
        return True
    return not free


def _held_is_live(moment: Moment) -> bool:
    return moment.answer.reason != "held" or moment.truth.live()


def _reason(moment: Moment) -> bool:
    if moment.action.lease is None:
        return True
    right = due(moment)
    if moment.answer.word == "refused":
        return moment.answer.reason == (right or "held")
    return not right or moment.answer.word != "out of order"


def _deletion(moment: Moment) -> bool:
    if moment.action.call not in {"delete", "delete_whole_run"}:
        return True
    before, after = moment.runs()
    blob = before.blob if moment.action.call == "delete" else ABSENT
    return (after.row, after.journal, after.meta, after.blob) == (None, (), ABSENT, blob)


def _landed_is_there(moment: Moment) -> bool:  # noqa: PLR0911 - one for each call
    before, after = moment.runs()
    lease = moment.action.lease
    epoch = NOBODY if lease is None else lease.epoch
    match moment.action.call:
        case "append":
            return after == before._replace(journal=(*before.journal, epoch))
        case "put_meta":
            return after == before._replace(meta=epoch)
        case "put_blob":
            return after == before._replace(blob=epoch)
        case "delete_blob":
            return after == before._replace(blob=ABSENT)
        case "release" | "raise_epoch":
            return after._replace(high=0) == before._replace(high=0, row=None)
        case "renew":
            row = None if lease is None else LeaseRow(lease.owner, lease.epoch, 0)
            return after == before._replace(row=row)
        case _:
            return True


def _others_untouched(moment: Moment) -> bool:
    return all(
        number == moment.action.run or before == moment.after.runs[number]
        for number, before in enumerate(moment.before.runs)
    )


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "superseded-changes-nothing",
        "after a later grant nothing under an earlier epoch lands, is granted or changes anything",
        _nothing_after,
        words=("granted", "landed", *_NO),
    ),
    Invariant(
        "only-the-live-lease-lands",
        "a mutation that carries a lease lands only if it is the live one of that run",
        _only_live,
        words=("landed",),
    ),
    Invariant(
        "a-seizure-over-a-lease-takes-that-one",
        "seize over a lease grants only while exactly that lease is the run's present one",
        _over_the_present,
        words=("granted",),
    ),
    Invariant(
        "renew-all-is-each-renewal",
        "renew_all renews each live lease, refuses each dead one with its reason, and no dead one "
        "hinders another",
        _each_renewed,
        words=("landed",),
    ),
    Invariant(
        "epochs-grow-for-ever",
        "an epoch is granted that is above every one that the run ever had: after release, "
        "expiry, deletion, recreation and raise_epoch",
        _epochs_grow,
        words=("granted",),
    ),
    Invariant(
        "one-holder",
        "acquire and revive grant nothing while a lease of the run is live",
        _one_holder,
        words=("granted",),
    ),
    Invariant(
        "refused-changes-nothing",
        "a call that is refused, or has not taken effect, changes nothing that can be read",
        _refused_is_nothing,
        words=_NOTHING,
        of_change=True,
    ),
    Invariant(
        "journal-epochs-never-fall",
        "the epochs under which a journal's records were written never fall",
        _journal_epochs,
        words=("landed",),
        of_change=True,
    ),
    Invariant(
        "journal-in-order",
        "a record whose seq is not above the tail never lands",
        _journal_order,
        words=("landed",),
    ),
    Invariant(
        "deletion-leaves-nothing",
        "a deleted run has no journal, row or lease, and with delete_whole_run no blob, so that "
        "a recreated one shows nothing of the old; delete leaves the blobs",
        _deletion,
        words=("landed",),
    ),
    Invariant(
        "landed-is-there",
        "what landed can be read, and nothing else of the run has changed",
        _landed_is_there,
        words=("landed",),
    ),
    Invariant(
        "other-runs-untouched",
        "a call changes no other run than the one it names",
        _others_untouched,
        of_change=True,
    ),
    Invariant(
        "the-live-lease-lands",
        "a mutation under the live lease of the run lands, and so does one without a lease",
        _live_lands,
        words=_NO,
    ),
    Invariant(
        "a-free-run-is-granted",
        "acquire grants a run that is not held, revive an expired lease of a run that was not "
        "taken, and seize the run of the present lease",
        _free_is_granted,
        words=("refused",),
    ),
    Invariant(
        "held-is-live",
        "held is answered only while a lease is live",
        _held_is_live,
        words=("refused",),
    ),
    Invariant(
        "the-reason-is-the-first-that-holds",
        "a refusal gives the reason that comes first in the contract's order, before the seq guard",
        _reason,
        words=_NO,
    ),
)


def _rows_are_true(moment: Moment) -> bool:
    truth = moment.truth.after(moment.action, moment.answer)
    there = moment.after.runs[moment.action.run]
    if truth.holder is None:
        return there.row is None
    return there.row == LeaseRow(*truth.holder, truth.age)


def _tombstone(moment: Moment) -> bool:
    truth = moment.truth.after(moment.action, moment.answer)
    return moment.after.runs[moment.action.run].high == truth.high


def _row_of_tombstone(moment: Moment) -> bool:
    return all(run.row is None or run.row.epoch == run.high for run in moment.after.runs)


INNER: tuple[Invariant, ...] = (
    Invariant(
        "the-tombstone-outlives-everything",
        "the store's high-water mark is the highest epoch ever, whatever was deleted since",
        _tombstone,
        of_change=True,
    ),
    Invariant(
        "the-lease-row-is-the-truth",
        "the store's lease row is that of the last grant, and gone when that was ended",
        _rows_are_true,
        of_change=True,
    ),
    Invariant(
        "a-lease-row-is-the-tombstones",
        "a lease row is of the tombstone's epoch, so no call ever meets another",
        _row_of_tombstone,
        of_change=True,
    ),
)

RECOVERY = Invariant(
    "no-run-is-lost",
    "from every state, time and acquire or revive alone lead to a grant",
    lambda _: True,
)
