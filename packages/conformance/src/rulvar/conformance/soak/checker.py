"""The checker: a history in, a verdict out, and no I/O.

It knows nothing of stores. From what the processes reported it rebuilds, for each run, the
one serial history that the epochs promise (`serial`), and holds against it:

1. the grants: every epoch is granted once, and a later grant has a higher one;
2. every acceptance: under a lease that was granted, for that run, and, by the machine's
   monotonic clock, not begun after a later grant or that lease's own end;
3. every refusal: something in the history bears its reason out;
4. every look at the store, in particular the last: what landed is there byte for byte, what
   was refused is not, what is unknown is in its place or nowhere;
5. each look against the one before: what a holder saw when it was granted the run stays as it
   was, so an attempt of an earlier epoch that arrives later is found even when nobody knew
   whether it had landed.

Expiry is not judged: clocks lie, and safety comes from the epoch alone
(contract.md#live-leases).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from rulvar.conformance.soak.history import FORKED, GRANTS, DamagedReportError
from rulvar.conformance.soak.results import Tally, Verdict, Violation, ViolationKind
from rulvar.conformance.soak.serial_order import Serial, find_attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rulvar.conformance.soak.history import Attempt, AttemptId, History, Seen, Stored
    from rulvar.conformance.soak.serial_order import Finding
    from rulvar.core.records import Lease

__all__ = ["judge"]

_ENDINGS = frozenset({"release", "delete", "delete_whole_run"})
_TIMELINE = 14


def judge(history: History, *, ended: bool = True) -> Verdict:
    """Judge a history.

    ``ended`` says that the storm is over: then every run that was touched must have been
    looked at last, and `DamagedReportError` is raised when one was not. A history that is
    still being written is judged with ``ended=False``, cut at an instant before the reports
    were read (`History.until`).
    """
    everything = {each.id: each for each in history.attempts}
    runs: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        runs[attempt.run_id].append(attempt)
    looks: dict[str, list[Seen]] = defaultdict(list)
    for look in history.seen:
        looks[look.run_id].append(look)
    tally = Tally(runs=len(runs))
    _count(history, tally)
    violations: list[Violation] = []
    for run_id in sorted({*runs, *looks}):
        if ended and not any(look.lease is None for look in looks[run_id]):
            message = f"run {run_id!r} was not read after the workers had ended"
            raise DamagedReportError(message)
        run = _Run(run_id, runs[run_id], looks[run_id], everything, tally)
        violations += run.violations()
    _count_unknown(history, tally)
    return Verdict(violations=tuple(violations), tally=tally)


def _count(history: History, tally: Tally) -> None:
    for attempt in history.attempts:
        if attempt.outcome == "landed":
            tally.accepted[attempt.op, attempt.death] += 1
            tally.grants += attempt.op in GRANTS
        elif attempt.outcome == "refused":
            tally.refused[attempt.op, attempt.death] += 1
            tally.reasons[attempt.reason] += 1
        elif attempt.outcome == "nothing":
            tally.nothing += 1


def _count_unknown(history: History, tally: Tally) -> None:
    there: set[str] = set()
    for look in history.seen:
        there.update(stored[0] for stored in (*look.journal, *look.blobs.values()))
        if look.row is not None:
            there.add(look.row[0])
    for attempt in history.attempts:
        if attempt.outcome != "unknown":
            continue
        if attempt.op not in {"append", "put_meta", "put_blob"}:
            tally.unknown_open += 1
        elif str(attempt.id) in there:
            tally.unknown_landed += 1
        else:
            tally.unknown_absent += 1


class _Grants:
    """The grants of one run, to be asked about instants."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.all = [each for each in attempts if each.op in GRANTS and each.outcome != "refused"]
        self.all = [each for each in self.all if each.outcome != "nothing"]
        self.landed = sorted(
            (each for each in self.all if each.outcome == "landed"), key=_returned_at
        )
        self.leases = {(each.grantee, each.granted) for each in self.landed}
        self._epochs = {each.granted for each in self.landed}
        self._returned = [_returned_at(each) for each in self.landed]
        self._highest: list[int] = []
        for each in self.landed:
            before = self._highest[-1] if self._highest else 0
            self._highest.append(max(before, each.granted or 0))

    def highest_before(self, instant: int) -> int:
        """Return the highest epoch that was granted, and known to be, before an instant."""
        index = bisect_left(self._returned, instant)
        return self._highest[index - 1] if index else 0

    def between(self, epoch: int, granted: int | None) -> int | None:
        """Return an epoch between the lease that a grant was made over and what it granted.

        Epochs rise in the order of the grants, so that lease was not the present one any more.
        """
        found = (each for each in self._epochs if granted and each and epoch < each < granted)
        return next(found, None)

    def unknown_for(self, lease: Lease, instant: int) -> bool:
        """Whether a grant that never returned may have given that lease, by an instant.

        Who seizes a lease has it from the store, which knows what it granted.
        """
        return any(
            each.granted is None and each.grantee == lease.owner and each.invoked_at < instant
            for each in self.all
        )

    def contested(self, epoch: int, instant: int) -> bool:
        """Whether somebody else may have been granted the run after ``epoch``, by an instant."""
        if any(each.invoked_at < instant and (each.granted or 0) > epoch for each in self.landed):
            return True
        # A grant that never returned has an epoch that no other grant had.
        if epoch + 1 in self._epochs:
            return False
        return any(each.granted is None and each.invoked_at < instant for each in self.all)

    def may_have_passed(self, epoch: int, instant: int) -> bool:
        """Whether a higher epoch than that may have been granted before an instant."""
        return any(
            each.invoked_at < instant and (each.granted is None or each.granted > epoch)
            for each in self.all
        )


def _returned_at(attempt: Attempt) -> int:
    return attempt.returned_at if attempt.returned_at is not None else attempt.invoked_at


class _Run:
    """One run, with everything that was attempted on it and seen of it."""

    def __init__(
        self,
        run_id: str,
        attempts: Sequence[Attempt],
        looks: Sequence[Seen],
        everything: dict[AttemptId, Attempt],
        tally: Tally,
    ) -> None:
        self.run_id = run_id
        self._attempts = attempts
        self._looks = sorted(looks, key=lambda each: (each.lease is None, each.at))
        self._everything = everything
        self._tally = tally
        self._grants = _Grants(attempts)
        self._endings: dict[Lease, list[Attempt]] = defaultdict(list)
        for each in attempts:
            if each.op in _ENDINGS and each.lease is not None and _may_have_landed(each):
                self._endings[each.lease].append(each)

    def violations(self) -> Iterator[Violation]:
        for kind, words, about in (
            *self._judge_grants(),
            *self._judge_acceptances(),
            *self._judge_refusals(),
            *self._judge_looks(),
        ):
            yield Violation(
                kind=kind, run_id=self.run_id, words=words, timeline=self._timeline(about)
            )

    # --- 1: grants ----------------------------------------------------------------------------

    def _judge_grants(self) -> Iterator[Finding]:
        granted: dict[int, Attempt] = {}
        for each in sorted(self._grants.landed, key=lambda grant: grant.invoked_at):
            epoch = each.granted
            if epoch is None:
                message = f"{each.id} was granted no epoch"
                raise DamagedReportError(message)
            if epoch in granted:
                words = f"epoch {epoch} was granted to {granted[epoch].id} and to {each.id}"
                yield (ViolationKind.DUPLICATE_GRANT, words, each)
                continue
            granted[epoch] = each
            before = self._grants.highest_before(each.invoked_at)
            if epoch <= before:
                words = f"{each.id} was granted epoch {epoch} after epoch {before} had been"
                yield (ViolationKind.EPOCH_INVERSION, words, each)
            self._tally.takeovers += self._is_takeover(granted, epoch)

    def _is_takeover(self, granted: dict[int, Attempt], epoch: int) -> bool:
        """Whether the tenure before had not ended by itself."""
        before = granted.get(epoch - 1)
        if before is None:
            return False
        owner = before.grantee
        return not any(
            lease.owner == owner and lease.epoch == epoch - 1 and endings
            for lease, endings in self._endings.items()
        )

    # --- 2: acceptances -----------------------------------------------------------------------

    def _judge_acceptances(self) -> Iterator[Finding]:
        for each in self._attempts:
            lease = each.lease
            if each.death == FORKED and each.returned_at is not None and each.reason != FORKED:
                words = (
                    f"{each.op} {each.id}, made by a forked child was not refused: {each.outcome}"
                )
                yield (ViolationKind.FORKED_ACCEPTANCE, words, each)
            if each.outcome != "landed" or lease is None:
                continue
            name = f"{each.op} {each.id} under epoch {lease.epoch} of {lease.owner!r}"
            if lease.run_id != self.run_id:
                words = f"{name} landed with a lease of run {lease.run_id!r}"
                yield (ViolationKind.LEAK, words, each)
                continue
            if (lease.owner, lease.epoch) not in self._grants.leases and not (
                each.op == "seize_over" and self._grants.unknown_for(lease, each.invoked_at)
            ):
                yield (ViolationKind.FORGED_ACCEPTANCE, f"{name} landed, never granted", each)
                continue
            passed = self._grants.highest_before(each.invoked_at)
            if passed > lease.epoch:
                words = f"{name} landed, begun after epoch {passed} had been granted"
                yield (ViolationKind.STALE_ACCEPTANCE, words, each)
            elif between := self._grants.between(lease.epoch, each.granted):
                words = f"{name} was granted epoch {each.granted}, after epoch {between}"
                yield (ViolationKind.STALE_ACCEPTANCE, words, each)
            elif ending := self._ended_before(each):
                words = f"{name} landed, begun after {ending.op} {ending.id} had ended that lease"
                yield (ViolationKind.STALE_ACCEPTANCE, words, each)

    def _ended_before(self, attempt: Attempt) -> Attempt | None:
        assert attempt.lease is not None
        for ending in self._endings.get(attempt.lease, ()):
            if ending.outcome == "landed" and _returned_at(ending) < attempt.invoked_at:
                return ending
        return None

    # --- 3: refusals --------------------------------------------------------------------------

    def _judge_refusals(self) -> Iterator[Finding]:
        for each in self._attempts:
            if each.outcome == "refused":
                why = self._unfounded(each)
                if why:
                    words = f"{each.op} {each.id} was refused as {each.reason!r}, but {why}"
                    yield (ViolationKind.WRONG_REASON, words, each)

    def _unfounded(self, attempt: Attempt) -> str:
        """Return what speaks against the reason of a refusal, or nothing."""
        reason, lease, at = attempt.reason, attempt.lease, _returned_at(attempt)
        if reason == "held":
            if attempt.op not in {"acquire", "revive"}:
                return "only a grant can be refused like that"
            return (
                "" if self._grants.may_have_passed(0, at) else "no owner had been granted the run"
            )
        if lease is None:
            return "no lease was offered"
        if lease.run_id != self.run_id or reason == "foreign-run":
            right = lease.run_id != self.run_id and reason == "foreign-run"
            return "" if right else f"the lease is of run {lease.run_id!r}"
        passed = self._grants.highest_before(attempt.invoked_at)
        if passed > lease.epoch and reason != "superseded":
            return f"epoch {passed} had been granted by then, so it is superseded"
        against = self._not_present if attempt.op == "seize_over" else self._against
        return against(reason, lease, at)

    def _not_present(self, reason: str, lease: Lease, at: int) -> str:
        """Return what speaks against it that a lease was not the run's present one."""
        if reason != "superseded":
            return "a seizure over another lease than the present one is superseded"
        granted = (lease.owner, lease.epoch) in self._grants.leases
        ended = any(each.invoked_at < at for each in self._endings.get(lease, ()))
        passed = self._grants.may_have_passed(lease.epoch, at)
        return "" if passed or ended or not granted else "that lease was the run's present one"

    def _against(self, reason: str, lease: Lease, at: int) -> str:
        granted = (lease.owner, lease.epoch) in self._grants.leases
        if reason == "superseded":
            passed = self._grants.may_have_passed(lease.epoch, at)
            return "" if passed else "no higher epoch had been granted"
        if reason == "released":
            ended = any(each.invoked_at < at for each in self._endings.get(lease, ()))
            # A forged lease may name the right epoch, and the run may be free.
            return "" if ended or not granted else "that lease had not been ended"
        if reason == "unknown":
            return "that lease had been granted" if granted else ""
        if reason == "expired":
            return "" if granted else "that lease had never been granted"
        return "the contract knows no such reason"

    # --- 4 and 5: looks -----------------------------------------------------------------------

    def _judge_looks(self) -> Iterator[Finding]:
        serial = Serial(self.run_id, self._attempts, self._everything)
        before: Seen | None = None
        for look in self._looks:
            self._tally.looks += 1
            epoch = None if look.lease is None else look.lease.epoch
            if epoch is not None and self._grants.contested(epoch, look.at):
                self._tally.contested_looks += 1
                continue
            wrong = serial.judge(look)
            yield from wrong
            if before is not None and not wrong:
                yield from self._judge_since(serial, before, look)
            before = look

    def _judge_since(self, serial: Serial, before: Seen, look: Seen) -> Iterator[Finding]:
        """Hold a look against an earlier one: the past of a granted run does not change."""
        if before.lease is None:
            return
        granted = before.lease.epoch
        until = float("inf") if look.lease is None else look.lease.epoch
        if serial.deletions_between(granted, until):
            return
        yield from self._judge_past_records(before, look, granted)
        then, after = _single(before), _single(look)
        for what in sorted({*then, *after}):
            stored_then, stored_now = then.get(what), after.get(what)
            if stored_then == stored_now:
                continue
            if stored_now is not None:
                if self._is_older(stored_now, granted):
                    yield self._arrived(what or "the row", stored_now, granted)
            elif not serial.blob_deletes_between(what, granted, until):
                assert stored_then is not None
                yield self._gone(what or "the row", stored_then, granted)

    def _judge_past_records(self, before: Seen, look: Seen, granted: int) -> Iterator[Finding]:
        was, now = set(before.journal), set(look.journal)
        for stored in look.journal:
            if stored not in was and self._is_older(stored, granted):
                yield self._arrived("a record", stored, granted)
        for stored in before.journal:
            if stored not in now:
                yield self._gone("record", stored, granted)

    def _is_older(self, stored: Stored, epoch: int) -> bool:
        attempt = find_attempt(stored, self._everything)
        return attempt is not None and attempt.epoch < epoch

    def _arrived(self, what: str, stored: Stored, granted: int) -> Finding:
        attempt = find_attempt(stored, self._everything)
        words = f"{what} is {stored[0]}, which was not there when epoch {granted} began"
        if attempt is not None:
            words += f" and was attempted under epoch {attempt.epoch}"
        return (ViolationKind.STALE_ACCEPTANCE, words, attempt)

    def _gone(self, what: str, stored: Stored, granted: int) -> Finding:
        words = f"{what} {stored[0]} was there when epoch {granted} began, and is gone"
        return (ViolationKind.LOST_WRITE, words, find_attempt(stored, self._everything))

    # --- telling ------------------------------------------------------------------------------

    def _timeline(self, about: Attempt | None) -> tuple[str, ...]:
        """Return what happened around one attempt: it, the grants and endings near it."""
        told = [each for each in self._attempts if each.op in GRANTS or each.op in _ENDINGS]
        told = [each for each in told if each.outcome in {"landed", "unknown"}]
        if about is not None and about not in told:
            told.append(about)
        told.sort(key=lambda each: each.invoked_at)
        middle = told.index(about) if about is not None else len(told)
        first = max(0, min(middle - _TIMELINE // 2, len(told) - _TIMELINE))
        shown = told[first : first + _TIMELINE]
        zero = shown[0].invoked_at if shown else 0
        return tuple(_line(each, zero, mark=each is about) for each in shown)


def _single(look: Seen) -> dict[str, Stored]:
    """Return what is stored once: the blobs by name, and the row under no name."""
    return dict(look.blobs) | ({} if look.row is None else {"": look.row})


def _may_have_landed(attempt: Attempt) -> bool:
    return attempt.outcome in {"landed", "unknown"}


def _line(attempt: Attempt, zero: int, *, mark: bool) -> str:
    began = (attempt.invoked_at - zero) / 1e6
    ended = "never" if attempt.returned_at is None else f"{(attempt.returned_at - zero) / 1e6:.1f}"
    under = "" if attempt.lease is None else f" under epoch {attempt.lease.epoch}"
    answer = attempt.outcome + (f" ({attempt.reason})" if attempt.reason else "")
    if attempt.granted is not None:
        answer += f", epoch {attempt.granted}"
    death = f", {attempt.death}" if attempt.death else ""
    sign = ">" if mark else " "
    what = f"{attempt.op} {attempt.id}{under}"
    return f"{sign} {began:9.1f} to {ended:>9} ms  {what:<36} {answer}{death}"
