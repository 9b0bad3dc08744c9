"""One worker's calls to the store, each reported before and after, and what it finds stored there.

An answer is sorted into what is known then: it landed, the fence refused it, nothing happened, or
the outcome is unknown. Whatever else a store raises goes up, and the attempt stays open: the soak
fails with it. Everything that is written bears its attempt, so that it can be compared.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from rulvar.conformance.harness.state import read_run
from rulvar.conformance.soak.history import FORKED, content_of
from rulvar.core.capabilities import has_lease_admin, has_lease_batch
from rulvar.core.errors import (
    JournalOrderViolation,
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreForkedError,
    StoreFullError,
)
from rulvar.core.records import JournalRecord, JsonMembers, RunMeta
from rulvar.core.wire import encode_meta, format_time, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.conformance.harness.actors import FullJournal, FullTranscripts
    from rulvar.conformance.soak.history import AttemptId, Operation, Outcome, Recorder, Stored
    from rulvar.core.records import Lease, LeaseInfo
    from rulvar.core.stores import StorePair, Stores

__all__ = [
    "Answer",
    "Look",
    "MutationCall",
    "RecordingClient",
    "Within",
    "blob_of",
    "encoded",
    "look_at",
    "record_of",
    "row_of",
    "stored",
]

_LOOKS = 5
_NOTHING = ((StoreBusyError, "busy"), (StoreFullError, "full"), (StoreForkedError, FORKED))

Within: TypeAlias = "Callable[[Callable[[], object]], object]"
"""Makes the call to the store, and nothing else, in its own way."""


class Answer(NamedTuple):
    """What became of one attempt; ``granted`` is the lease that a grant gave."""

    outcome: Outcome
    reason: str = ""
    granted: Lease | None = None
    holder: str = ""
    tail: int | None = None

    @property
    def landed(self) -> bool:
        """Whether the store said that it is done."""
        return self.outcome == "landed"


class MutationCall(NamedTuple):
    """What one mutation is aimed at. ``run_id`` may differ from the lease's."""

    run_id: str
    lease: Lease
    death: str
    number: int
    seq: int
    target: str
    size: int


class _Prepared(NamedTuple):
    """A call that is ready to be made, and what is reported of it."""

    call: Callable[[], object]
    content: str = ""
    target: str = ""


class RecordingClient:
    """Everything that one process asks of the store. Several threads may use it."""

    def __init__(self, stores: Stores, recorder: Recorder, *, blobs: bool) -> None:
        self._stores = stores
        self._journal = cast("FullJournal", stores.journal)
        self._transcripts = cast("FullTranscripts", stores.transcripts)
        self._recorder = recorder
        self._blobs = blobs
        self._shows_leases = has_lease_admin(stores.journal)
        self._renews_many = has_lease_batch(stores.journal)
        self._numbering = threading.Lock()
        self._ways: dict[Operation, Callable[[AttemptId, MutationCall], _Prepared]] = {
            "append": self._append,
            "put_meta": self._put_meta,
            "put_blob": self._blob_put,
            "delete_blob": self._blob_delete,
            "delete": self._delete,
            "delete_whole_run": self._delete_whole_run,
            "renew": self._renew,
            "renew_all": self._renew_all,
            "seize_over": self._seize_over,
            "release": self._release,
            "revive": self._revive,
        }

    # --- grants -------------------------------------------------------------------------------

    def acquire(self, run_id: str, owner: str, within: Within | None = None) -> Answer:
        """Ask for a run."""
        return self._grant(
            "acquire", run_id, owner, lambda: self._journal.acquire(run_id, owner), within
        )

    def seize(
        self, run_id: str, owner: str, within: Within | None = None, *, over: Lease | None = None
    ) -> Answer:
        """Take a run, whoever has it, or ``over`` exactly that lease of it."""
        if over is None:
            return self._grant(
                "seize", run_id, owner, lambda: self._journal.seize(run_id, owner), within
            )
        return self._grant(
            "seize_over",
            run_id,
            owner,
            lambda: self._journal.seize(run_id, owner, over=over),
            within,
            over=over,
        )

    def _grant(
        self,
        op: Operation,
        run_id: str,
        owner: str,
        call: Callable[[], Lease],
        within: Within | None,
        *,
        over: Lease | None = None,
    ) -> Answer:
        attempt = self._next()
        self._recorder.invoked(attempt, op, run_id, lease=over, target=owner)
        return self._answer(attempt, call, within, grants=True)

    # --- mutations ----------------------------------------------------------------------------

    def attempt(
        self, op: Operation, mutation: MutationCall, within: Within | None = None
    ) -> Answer:
        """Make one mutation, or a revival, under a lease that may be dead."""
        attempt = self._next()
        call, content, target = self._ways[op](attempt, mutation)
        self._recorder.invoked(
            attempt,
            op,
            mutation.run_id,
            lease=mutation.lease,
            target=target,
            content=content,
            death=mutation.death,
        )
        return self._answer(attempt, call, within, grants=op in {"revive", "seize_over"})

    def renew_many(self, mutations: Sequence[MutationCall]) -> list[Answer]:
        """Renew leases that may be dead, in one call where the store has that; answer each."""
        if not mutations or not self._renews_many:
            return [self.attempt("renew", mutation) for mutation in mutations]
        attempts = []
        for mutation in mutations:
            attempts.append(attempt := self._next())
            self._recorder.invoked(
                attempt, "renew_all", mutation.run_id, lease=mutation.lease, death=mutation.death
            )
        refused: dict[Lease | None, str] = {}
        leases = [mutation.lease for mutation in mutations]

        def call() -> None:
            for refusal in self._journal.renew_all(leases):
                refused[refusal.offered] = refusal.reason

        whole = _sorted(call, grants=False)
        answers = []
        for attempt, lease in zip(attempts, leases, strict=True):
            answer = Answer("refused", refused[lease]) if lease in refused else whole
            self._recorder.returned(attempt, answer.outcome, reason=answer.reason)
            answers.append(answer)
        return answers

    def _append(self, attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        record = record_of(attempt, mutation.seq, mutation.lease.epoch, mutation.number)
        return _Prepared(
            lambda: self._journal.append(mutation.run_id, record, lease=mutation.lease),
            content_of(record.payload),
        )

    def _put_meta(self, attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        row = row_of(mutation.run_id, attempt, mutation.lease.epoch, mutation.number)
        return _Prepared(
            lambda: self._journal.put_meta(row, lease=mutation.lease), content_of(encoded(row))
        )

    def _blob_put(self, attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        data = blob_of(attempt, mutation.lease.epoch, mutation.number, mutation.size)
        ref = f"{mutation.run_id}/{mutation.target}"
        return _Prepared(
            lambda: self._transcripts.put(ref, data, lease=mutation.lease),
            content_of(data),
            mutation.target,
        )

    def _blob_delete(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        ref = f"{mutation.run_id}/{mutation.target}"
        return _Prepared(
            lambda: self._transcripts.delete(ref, lease=mutation.lease), target=mutation.target
        )

    def _delete(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        return _Prepared(lambda: self._journal.delete(mutation.run_id, lease=mutation.lease))

    def _delete_whole_run(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        return _Prepared(
            lambda: self._journal.delete_whole_run(mutation.run_id, lease=mutation.lease)
        )

    def _renew(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        return _Prepared(lambda: self._journal.renew(mutation.lease))

    def _renew_all(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        def call() -> None:
            for refusal in self._journal.renew_all([mutation.lease]):
                raise refusal

        return _Prepared(call)

    def _seize_over(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        owner = mutation.lease.owner
        return _Prepared(
            lambda: self._journal.seize(mutation.run_id, owner, over=mutation.lease), target=owner
        )

    def _release(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        return _Prepared(lambda: self._journal.release(mutation.lease))

    def _revive(self, _attempt: AttemptId, mutation: MutationCall) -> _Prepared:
        return _Prepared(lambda: self._journal.revive(mutation.lease))

    def _next(self) -> AttemptId:
        with self._numbering:
            return self._recorder.next_id()

    def _answer(
        self,
        attempt: AttemptId,
        call: Callable[[], object],
        within: Within | None,
        *,
        grants: bool,
    ) -> Answer:
        answer = _sorted(call if within is None else lambda: within(call), grants=grants)
        granted = answer.granted
        self._recorder.returned(
            attempt,
            answer.outcome,
            reason=answer.reason,
            granted=None if granted is None else granted.epoch,
        )
        return answer

    # --- reading ------------------------------------------------------------------------------

    def look(self, lease: Lease) -> Look | None:
        """Read and report the whole run that was just granted.

        None when it is gone: the process may have been away in the middle of it, and a
        successor may have written. Raises `StoreBusyError` when nobody can say: then nothing
        may be written under that lease.
        """
        for _ in range(_LOOKS):
            try:
                look = look_at(self._stores, lease.run_id, blobs=self._blobs)
                if not self._holds(lease):
                    return None
            except (StoreBusyError, OutcomeUnknownError):
                continue  # looked at again, and at the last try not at all
            self._recorder.seen(
                lease.run_id, lease=lease, journal=look.journal, row=look.row, blobs=look.blobs
            )
            return look
        message = f"run {lease.run_id} could not be looked at"
        raise StoreBusyError(message, run_id=lease.run_id)

    def _holds(self, lease: Lease) -> bool:
        """Whether no later epoch was granted by now; the lease may have run out."""
        if self._shows_leases:
            info = self._journal.get_lease(lease.run_id)
            return info is not None and (info.owner, info.epoch) == (lease.owner, lease.epoch)
        answer = self.attempt("renew", MutationCall(lease.run_id, lease, "", 0, 0, "", 0))
        if answer.outcome in {"nothing", "unknown"}:
            message = f"the lease of run {lease.run_id} could not be renewed"
            raise StoreBusyError(message, run_id=lease.run_id)
        return answer.landed

    def present(self, run_id: str) -> LeaseInfo | None:
        """Return the run's present lease; None where there is none, or nobody can say."""
        if not self._shows_leases:
            return None
        try:
            return self._journal.get_lease(run_id)
        except (StoreBusyError, OutcomeUnknownError):
            return None


def _sorted(call: Callable[[], object], *, grants: bool) -> Answer:
    """Make the call and sort its answer."""
    try:
        value = call()
    except LeaseHeldError as refusal:
        return Answer("refused", refusal.reason, holder=refusal.holder or "")
    except JournalOrderViolation as disorder:
        return Answer("nothing", "order", tail=disorder.tail_seq)
    except (StoreBusyError, StoreFullError, StoreForkedError) as error:
        return Answer("nothing", next(why for kind, why in _NOTHING if isinstance(error, kind)))
    except OutcomeUnknownError:
        return Answer("unknown")
    return Answer("landed", granted=cast("Lease", value) if grants else None)


_BORNE = re.compile(rb'"id":"([0-9.]+)"')
_WITHIN = 1_000
_STARTED_AT = 1_700_000_000_000


def stored(data: bytes) -> Stored:
    """Return which attempt the bytes bear ("" for none), and their digest."""
    found = _BORNE.search(data, 0, _WITHIN)
    return (found[1].decode() if found else "", content_of(data))


def record_of(attempt: AttemptId, seq: int, epoch: int, count: int) -> JournalRecord:
    """Return a record that bears its attempt, its epoch and the count within its tenure."""
    text = f'{{"seq":{seq},"id":"{attempt}","epoch":{epoch},"count":{count}}}'
    return JournalRecord(seq=seq, payload=text.encode())


def row_of(run_id: str, attempt: AttemptId, epoch: int, count: int) -> RunMeta:
    """Return a row that bears its attempt in a field and in a member that nobody knows."""
    return RunMeta(
        run_id=run_id,
        status="running",
        updated_at=format_time(_STARTED_AT + count),
        name=f"{attempt}",
        tags=("soak", f"epoch-{epoch}"),
        segments=epoch,
        extra=JsonMembers({"id": json_text(str(attempt)), "count": str(count)}),
    )


def blob_of(attempt: AttemptId, epoch: int, count: int, size: int) -> bytes:
    """Return a blob of at least ``size`` bytes that bears its attempt."""
    head = f'{{"id":"{attempt}","epoch":{epoch},"count":{count}}}\n'.encode()
    return head + bytes(max(0, size - len(head)))


class Look:
    """What one run holds: what `Recorder.seen` takes, and the journal's tail (-1: empty)."""

    def __init__(
        self, journal: tuple[Stored, ...], row: Stored | None, blobs: dict[str, Stored], tail: int
    ) -> None:
        self.journal = journal
        self.row = row
        self.blobs = blobs
        self.tail = tail


def look_at(stores: StorePair, run_id: str, *, blobs: bool) -> Look:
    """Read a whole run."""
    state = read_run(stores, run_id, blobs=blobs)
    return Look(
        tuple(stored(payload) for _, payload in state.journal),
        None if state.row is None else stored(state.row.encode()),
        {
            ref.removeprefix(f"{run_id}/"): stored(data)
            for ref, data in state.blobs
            if data is not None
        },
        state.journal[-1][0] if state.journal else -1,
    )


def encoded(row: RunMeta) -> bytes:
    """Return the bytes by which a row is compared."""
    return encode_meta(row).encode()
