"""The one serial history of a run that its epochs promise, and whether a look agrees with it.

All mutations of a run stand in one order: by epoch, within an epoch by the order in which
their only holder attempted them. What a look must show follows from that order alone:

- what landed before it is there, in its place, unless a deletion in between removed it;
- what is unknown is there in its place, or nowhere;
- what was refused, and what was never attempted, is not there.

A deletion whose outcome is unknown may have happened or not, so each such choice is tried; a
look is sound when at least one of them explains all of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from rulvar.conformance.soak.history import AttemptId
from rulvar.conformance.soak.results import ViolationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rulvar.conformance.soak.history import Attempt, Seen, Stored

__all__ = ["Finding", "Serial", "find_attempt"]

Finding: TypeAlias = tuple[ViolationKind, str, "Attempt | None"]
"""What is wrong, in words, and the attempt that it is about where there is one."""

_START = (-1, -1, -1)
_MOST_UNKNOWN_DELETIONS = 6
_DELETIONS = frozenset({"delete", "delete_whole_run"})


def find_attempt(stored: Stored, attempts: Mapping[AttemptId, Attempt]) -> Attempt | None:
    """Return the attempt that stored bytes claim to come from, or None."""
    try:
        return attempts.get(AttemptId.parse(stored[0]))
    except ValueError:
        return None  # it bears no id: the checker says so


def _may_be_there(attempt: Attempt) -> bool:
    return attempt.outcome in {"landed", "unknown"}


class Serial:
    """The mutations of one run that landed or may have landed, in their order.

    ``everything`` holds the attempts of every run by their ids: what is found stored may
    come from anywhere.
    """

    def __init__(
        self, run_id: str, mine: Iterable[Attempt], everything: Mapping[AttemptId, Attempt]
    ) -> None:
        self.run_id = run_id
        self._everything = everything
        order = sorted(filter(_may_be_there, mine), key=lambda each: each.place)
        self._appends = [each for each in order if each.op == "append"]
        self._rows = [each for each in order if each.op == "put_meta"]
        self._deletions = [each for each in order if each.op in _DELETIONS]
        self._blobs: dict[str, list[Attempt]] = {}
        for each in order:
            if each.op in {"put_blob", "delete_blob"}:
                self._blobs.setdefault(each.target, []).append(each)

    def deletions_between(self, low: int, high: float) -> bool:
        """Whether a deletion under an epoch from ``low`` to below ``high`` may have landed."""
        return any(low <= each.epoch < high for each in self._deletions)

    def blob_deletes_between(self, name: str, low: int, high: float) -> bool:
        """Whether one blob may have been deleted under an epoch from ``low`` to below ``high``."""
        writes = self._blobs.get(name, ())
        return any(each.op == "delete_blob" and low <= each.epoch < high for each in writes)

    def judge(self, look: Seen) -> list[Finding]:
        """Return what is wrong with a look. Nobody else may have been granted the run by then."""
        wrong = list(self._judge_each(look))
        if wrong:
            return wrong
        limit = float("inf") if look.lease is None else look.lease.epoch
        best: list[Finding] | None = None
        choices = self._choices_of_deletions(limit)
        for choice in choices:
            found = list(self._explain(look, choice, limit))
            if not found:
                return []
            if best is None or len(found) < len(best):
                best = found
        if best is not None and len(choices) > 1:
            words = "neither with nor without the unknown deletion is it explained: " + best[0][1]
            return [(ViolationKind.HALF_DELETED, words, best[0][2])]
        return best or []

    # --- each thing that is stored, by itself -----------------------------------------------

    def _judge_each(self, look: Seen) -> Iterator[Finding]:
        for stored in look.journal:
            yield from self._judge_one(stored, "append", "", "a record")
        if look.row is not None:
            yield from self._judge_one(look.row, "put_meta", "", "the row")
        for name, stored in look.blobs.items():
            yield from self._judge_one(stored, "put_blob", name, f"blob {name!r}")
        yield from self._judge_order(look)

    def _judge_one(self, stored: Stored, op: str, target: str, what: str) -> Iterator[Finding]:
        attempt = find_attempt(stored, self._everything)
        if attempt is None or attempt.op != op:
            words = f"{what} bears {stored[0] or 'no attempt'!r}, which was never attempted"
            yield (ViolationKind.INVENTED, words, attempt)
        elif attempt.run_id != self.run_id or attempt.target != target:
            words = f"{what} is {attempt.id}, which was written to {_aim(attempt)}"
            yield (ViolationKind.LEAK, words, attempt)
        elif attempt.content != stored[1]:
            words = f"{what} of {attempt.id} has the digest {stored[1]}, offered {attempt.content}"
            yield (ViolationKind.DIVERGENT_BYTES, words, attempt)
        elif not _may_be_there(attempt):
            why = attempt.reason or "nothing happened"
            words = f"{what} is {attempt.id}, which was refused ({why})"
            yield (ViolationKind.REFUSED_LANDED, words, attempt)

    def _judge_order(self, look: Seen) -> Iterator[Finding]:
        found = [find_attempt(each, self._everything) for each in look.journal]
        seen: set[AttemptId] = set()
        for attempt in found:
            if attempt is not None and attempt.id in seen:
                words = f"{attempt.id} is in the journal twice"
                yield (ViolationKind.LANDED_TWICE, words, attempt)
            elif attempt is not None:
                seen.add(attempt.id)
        for before, after in pairwise(each for each in found if each is not None):
            if after.epoch < before.epoch:
                words = f"epoch {after.epoch} ({after.id}) stands after epoch {before.epoch}"
                yield (ViolationKind.EPOCH_INVERSION, words, after)
            elif after.place < before.place:
                words = f"{after.id} stands after {before.id}, which was attempted later"
                yield (ViolationKind.OUT_OF_PLACE, words, after)

    # --- the whole ----------------------------------------------------------------------------

    def _choices_of_deletions(self, limit: float) -> list[tuple[Attempt, ...]]:
        """Return every set of deletions that may have happened before the look."""
        before = [each for each in self._deletions if each.epoch < limit]
        landed = [each for each in before if each.outcome == "landed"]
        unknown = [each for each in before if each.outcome == "unknown"]
        choices: list[tuple[Attempt, ...]] = [tuple(landed)]
        for each in unknown[-_MOST_UNKNOWN_DELETIONS:]:
            choices += [(*choice, each) for choice in choices]
        return choices

    def _explain(
        self, look: Seen, deletions: tuple[Attempt, ...], limit: float
    ) -> Iterator[Finding]:
        start = max((each.place for each in deletions), default=_START)
        whole = [each.place for each in deletions if each.op == "delete_whole_run"]
        blobs_start = max(whole, default=_START)
        yield from self._explain_journal(look, start, limit)
        row = None if look.row is None else find_attempt(look.row, self._everything)
        yield from _explain_last("the row", row, self._rows, start, limit)
        for name in sorted({*self._blobs, *look.blobs}):
            stored = look.blobs.get(name)
            there = None if stored is None else find_attempt(stored, self._everything)
            writes = self._blobs.get(name, [])
            yield from _explain_last(f"blob {name!r}", there, writes, blobs_start, limit)

    def _explain_journal(
        self, look: Seen, start: tuple[int, int, int], limit: float
    ) -> Iterator[Finding]:
        there: set[AttemptId] = set()
        for stored in look.journal:
            attempt = find_attempt(stored, self._everything)
            if attempt is None:
                continue
            there.add(attempt.id)
            yield from _too_early_or_late("a record", attempt, start, limit)
        for attempt in self._appends:
            if attempt.outcome != "landed" or not start < attempt.place or attempt.epoch >= limit:
                continue
            if attempt.id not in there:
                words = f"append {attempt.id} under epoch {attempt.epoch} was acknowledged"
                yield (ViolationKind.LOST_WRITE, f"{words} and is not there", attempt)


def _aim(attempt: Attempt) -> str:
    return f"{attempt.run_id}/{attempt.target}" if attempt.target else attempt.run_id


def _too_early_or_late(
    what: str, attempt: Attempt, start: tuple[int, int, int], limit: float
) -> Iterator[Finding]:
    if attempt.place < start:
        words = f"{what} is {attempt.id} under epoch {attempt.epoch}, deleted since"
        yield (ViolationKind.DELETED_CAME_BACK, words, attempt)
    elif attempt.epoch >= limit:
        words = f"{what} is {attempt.id} under epoch {attempt.epoch}, before that was granted"
        yield (ViolationKind.EPOCH_INVERSION, words, attempt)


def _explain_last(
    what: str,
    there: Attempt | None,
    writes: Sequence[Attempt],
    start: tuple[int, int, int],
    limit: float,
) -> Iterator[Finding]:
    """Hold what is stored against the last write: of a row, or of one blob."""
    if there is not None:
        early = list(_too_early_or_late(what, there, start, limit))
        if early:
            yield from early
            return
    since = [each for each in writes if start < each.place and each.epoch < limit]
    landed = [each for each in since if each.outcome == "landed"]
    last = landed[-1] if landed else None
    later = since[since.index(last) + 1 :] if last is not None else since
    possible = [*([last] if last is not None else []), *later]
    # None stands for "not there": nothing was written, or the last write was a deletion.
    shows = {None if each.op == "delete_blob" else each.id for each in possible}
    if last is None:
        shows.add(None)
    found = None if there is None else there.id
    if found in shows:
        return
    if last is None:  # only one that is stored can be unexpected then
        return
    is_now = "not there" if there is None else f"{there.id} under epoch {there.epoch}"
    words = f"{what} is {is_now}; {last.id} under epoch {last.epoch} was acknowledged after that"
    yield (ViolationKind.LOST_WRITE, words, last)
