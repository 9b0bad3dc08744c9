"""Ownership of a run during one segment: acquired, renewed, re-acquired after an expiry, lost.

The rules (contract.md#ownership, contract.md#expired-leases):

- A lease that the segment took itself is renewed by the renewer at a third of its time to
  live. A lease handed in by the caller is neither renewed, re-acquired nor released.
- Only `LeaseHeldError` means lost. A busy renewal is tried again.
- Expired but taken by nobody is not the end: on ``expired`` alone, and only for a lease of
  its own, the segment takes the run again. It goes on if the new epoch is exactly its own
  plus one and the store still holds what the segment knows. Meanwhile the writer is closed:
  `authority` waits, and hands out the new lease only when all that has been checked.
- A refusal that names an older epoch of the segment's own is tried again under its present
  lease.
- No owner string is used for two grants: `revive` goes on under the one it has, and where the
  store has no `revive`, each grant has a string of its own. A grant that is found to be there
  already is adopted by the object whose own call for it ended in doubt, and by no other.
- A run whose holder's process is provably gone is seized, over exactly that lease.
- Every other refusal is loss. It latches: the first `SupersededError` is the answer to
  every later question, and whoever asked to be told is told once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from rulvar.core.engine.io.event_bus import no_events
from rulvar.core.engine.kernel.authority import UNLEASED
from rulvar.core.errors import (
    LeaseHeldError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    SupersededError,
)
from rulvar.core.process_identity import is_provably_gone
from rulvar.core.records import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from rulvar.core.clock import Clock
    from rulvar.core.engine.io.event_bus import Emit
    from rulvar.core.engine.io.mutations import LeaseApi
    from rulvar.core.engine.kernel.authority import Authority, Unleased
    from rulvar.core.errors import RefusalReason

__all__ = ["ExternalLease", "NoLease", "OwnedLease", "Ownership", "Predecessor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """Who had a run before it was taken, and did not give it back."""

    owner: str
    ended: Literal["lease-expired", "process-gone"] = "lease-expired"


class Ownership(Protocol):
    """What the writer asks before every mutation, and tells after every refusal."""

    run_id: str
    verify: Callable[[], bool]
    """Asked under a lease that was taken again whether the store holds what was read: the
    writer's, once there is one."""

    @property
    def epoch(self) -> int | None:
        """The present fencing token, as last known; never waits."""
        ...

    def authority(self) -> Authority:
        """Return what to write under, waiting while the run is being taken again.

        Raises `SupersededError` once the run is lost.
        """
        ...

    def refused(self, used: Authority, error: LeaseHeldError) -> None:
        """Return when the call is worth another try; otherwise lose the run.

        Raises `SupersededError`.
        """
        ...

    def time_left(self) -> bool:
        """Whether a busy call may still be tried again under the present lease."""
        ...

    def last_mutation(self) -> AbstractContextManager[None]:
        """Surround the delete of the run, which ends the lease when it lands."""
        ...

    def release(self) -> None:
        """Give the run back; harmless when it is lost already."""
        ...


_log = logging.getLogger("rulvar.engine")

_PAUSE_SECONDS = 0.005
"""Between two tries of a busy call: the store has waited for its own timeout already."""


def _superseded(
    run_id: str, lease: Lease, reason: RefusalReason, error: LeaseHeldError
) -> SupersededError:
    return SupersededError(
        run_id=run_id,
        reason=reason,
        epoch=lease.epoch,
        holder=error.holder,
        holder_epoch=error.epoch,
    )


def _nothing_was_read() -> bool:
    return True


class NoLease:
    """No lease: a store without leases, or a host that decided to go without."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.verify = _nothing_was_read

    @property
    def epoch(self) -> int | None:
        """There is none."""
        return None

    def authority(self) -> Unleased:
        """Return the authority that is none."""
        return UNLEASED

    def refused(self, used: Authority, error: LeaseHeldError) -> None:  # noqa: ARG002
        """Pass the refusal on: a store that refuses an unleased write says so itself."""
        raise error

    def time_left(self) -> bool:
        """Say no: the store has waited for its busy timeout already."""
        return False

    def last_mutation(self) -> AbstractContextManager[None]:
        """Do nothing: there is no lease."""
        return nullcontext()

    def release(self) -> None:
        """Do nothing."""


class ExternalLease:
    """A lease handed in by the caller, who keeps renewing and releasing it.

    ``on_loss`` is called once, from whatever thread noticed, when the run is lost.
    """

    def __init__(self, lease: Lease) -> None:
        self.run_id = lease.run_id
        self.lease = lease
        self.verify = _nothing_was_read
        self.on_loss: Callable[[SupersededError], None] = lambda _error: None
        self._lost: SupersededError | None = None
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int | None:
        """The epoch of the caller's lease."""
        return self.lease.epoch

    def authority(self) -> Authority:
        """Return the caller's lease."""
        if self._lost is not None:
            raise self._lost
        return self.lease

    def refused(self, used: Authority, error: LeaseHeldError) -> None:  # noqa: ARG002
        """Lose the run: an expired lease is the caller's to take again."""
        with self._lock:
            if self._lost is None:
                self._lost = _superseded(self.run_id, self.lease, error.reason, error)
                self.on_loss(self._lost)
        raise self._lost from error

    def time_left(self) -> bool:
        """Say no: how long the lease lives is the caller's knowledge."""
        return False

    def last_mutation(self) -> AbstractContextManager[None]:
        """Do nothing: nobody renews the lease here."""
        return nullcontext()

    def release(self) -> None:
        """Do nothing: the lease is the caller's."""


def _another_owner() -> str:
    return uuid.uuid4().hex


def _acquire(calls: LeaseApi, run_id: str, owner: str) -> tuple[Lease, str | None]:
    """Return the lease, and whose it was when its holder was provably gone."""
    while True:
        try:
            return calls.acquire(run_id, owner), None
        except LeaseHeldError as held:
            holder, epoch = held.holder, held.epoch
            if holder is None or epoch is None or not calls.seizes or not is_provably_gone(holder):
                raise
            over = Lease(run_id=run_id, owner=holder, epoch=epoch)
            with suppress(LeaseHeldError):  # another owner was first: see whose it is now
                lease = calls.seize(owner, over)
                _log.warning("run %r was taken from %s, whose process is gone", run_id, holder)
                return lease, holder


class OwnedLease:
    """A lease that this segment took itself.

    ``on_loss`` is called once, from whatever thread noticed, when the run is lost, and
    ``on_reacquired`` with the new epoch each time that it was taken again.
    """

    def __init__(self, calls: LeaseApi, lease: Lease, *, lease_ttl_ms: int, clock: Clock) -> None:
        self.run_id = lease.run_id
        self.lease_ttl_ms = lease_ttl_ms
        self.verify = _nothing_was_read
        self.on_loss: Callable[[SupersededError], None] = lambda _error: None
        self.on_reacquired: Callable[[int], None] = lambda _epoch: None
        self.emit: Emit = no_events
        self.reacquired = 0
        self.predecessor: Predecessor | None = None
        self._fresh_owner: Callable[[], str] = _another_owner
        self._in_doubt: str | None = None
        self._calls = calls
        self._clock = clock
        self._lease = lease
        self._alive_at = clock.monotonic_ms()
        self._lost: SupersededError | None = None
        self._ended = False
        self._ending = False
        # Held while the run is taken again: that is what closes the writer.
        self._lock = threading.RLock()

    @classmethod
    def take(
        cls,
        calls: LeaseApi,
        run_id: str,
        owner: str,
        *,
        lease_ttl_ms: int,
        clock: Clock,
        fresh_owner: Callable[[], str] = _another_owner,
    ) -> OwnedLease:
        """Acquire the run, or seize it from a holder whose process is provably gone.

        ``owner`` was never used for a grant; ``fresh_owner`` gives more such strings. Raises
        `LeaseHeldError` (``held``) while it is held, and what a store raises.
        """
        asked_at = clock.monotonic_ms()
        lease, gone = _acquire(calls, run_id, owner)
        owned = cls(calls, lease, lease_ttl_ms=lease_ttl_ms, clock=clock)
        owned._alive_at = asked_at
        owned._fresh_owner = fresh_owner
        if gone is not None:
            owned.predecessor = Predecessor(owner=gone, ended="process-gone")
        return owned

    @property
    def lease(self) -> Lease:
        """The present lease, live or not."""
        return self._lease

    @property
    def epoch(self) -> int | None:
        """The present lease's epoch; never waits."""
        return self._lease.epoch

    @property
    def lost(self) -> SupersededError | None:
        """How the run was lost, once it is."""
        return self._lost

    def authority(self) -> Authority:
        """Return the present lease, once nobody is taking the run again."""
        with self._lock:
            if self._lost is not None:
                raise self._lost
            return self._lease

    def time_left(self) -> bool:
        """Whether the lease lives still, as far as its last renewal tells."""
        return self._clock.monotonic_ms() - self._alive_at < self.lease_ttl_ms

    def refused(self, used: Authority, error: LeaseHeldError) -> None:
        """Take the run again if that is allowed, else lose it. Raises `SupersededError`."""
        with self._lock:
            if self._lost is not None:
                raise self._lost
            if used != self._lease:
                return  # an older epoch of our own: the present lease is the one to use
            if self._ended:
                # Given back: taking it again would leave a lease that nobody renews or releases.
                raise _superseded(self.run_id, self._lease, error.reason, error) from error
            if error.reason != "expired":
                self._lose(error.reason, error)
            self._take_again()

    def renew(self) -> bool:
        """Renew once; return whether the renewer shall go on.

        A busy, full or unknown answer is no loss: the renewer tries again soon. Raises those,
        and nothing else.
        """
        lease = self._to_renew()
        if lease is None:
            return False
        asked_at, began = self._clock.monotonic_ms(), time.perf_counter()
        try:
            self._calls.renew(lease)
        except StoreBusyError:
            self.emit("store.busy", name="renew")
            raise
        except LeaseHeldError as error:
            return self._renewal_refused(lease, error)
        self._renewed(lease, asked_at, (time.perf_counter() - began) * 1000)
        return True

    @property
    def renews_many(self) -> bool:
        """Whether the store renews the leases of many runs in one unit."""
        return self._calls.renews_many

    @classmethod
    def renew_together(cls, runs: Sequence[OwnedLease]) -> tuple[set[OwnedLease], set[OwnedLease]]:
        """Renew the runs of one engine in one unit.

        Returns those that the renewer shall continue, and those to try again soon. Raises
        what a store raises that has renewed none.
        """
        leases = {lease: run for run in runs if (lease := run._to_renew()) is not None}  # noqa: SLF001 - of this class
        going, again = set(leases.values()), set[OwnedLease]()
        if not leases:
            return going, again
        [first, *_] = runs
        asked_at, began = first._clock.monotonic_ms(), time.perf_counter()  # noqa: SLF001 - of this class
        try:
            refusals = first._calls.renew_all(tuple(leases))  # noqa: SLF001 - of this class
        except StoreBusyError:
            for run in going:
                run.emit("store.busy", name="renew")
            raise
        took_ms = (time.perf_counter() - began) * 1000
        refused = {refusal.offered: refusal for refusal in refusals}
        for lease in leases.keys() - refused.keys():
            leases[lease]._renewed(lease, asked_at, took_ms)  # noqa: SLF001 - of this class
        for lease in leases.keys() & refused.keys():
            run = leases[lease]
            try:
                if not run._renewal_refused(lease, refused[lease]):  # noqa: SLF001 - of this class
                    going.discard(run)
            except StoreError:
                again.add(run)  # it could not be taken again just now
        return going - again, again

    def _to_renew(self) -> Lease | None:
        with self._lock:
            return None if self._ended or self._lost is not None else self._lease

    def _renewed(self, lease: Lease, asked_at: int, took_ms: float) -> None:
        self._alive_at = asked_at
        self.emit("lease.renewed", epoch=lease.epoch, duration=took_ms / 1000)

    def _renewal_refused(self, lease: Lease, error: LeaseHeldError) -> bool:
        """Take the run again if that is allowed; return whether the renewer shall go on."""
        if self._ended or (self._ending and error.reason == "released"):
            return False  # its own delete has ended it, or is about to say so
        self.emit("write.refused", name="renew", detail=error.reason, epoch=lease.epoch)
        try:
            self.refused(lease, error)
        except SupersededError:
            return False  # latched, and told to whoever asked
        return True

    def release(self) -> None:
        """Give the run back; a lost one, or one that a delete has ended, is left alone."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            lease, lost = self._lease, self._lost
        if lost is None:
            try:
                self._calls.release(lease)
            except LeaseHeldError:
                return  # lost at the last moment: the successor's lease was not touched

    @contextmanager
    def last_mutation(self) -> Iterator[None]:
        """Surround the delete of the run: landed, it has ended the lease, which is no loss."""
        self._ending = True
        try:
            yield
        except BaseException:
            self._ending = False
            raise
        with self._lock:
            self._ended = True

    def _lose(self, reason: RefusalReason, error: LeaseHeldError) -> NoReturn:
        self._lost = _superseded(self.run_id, self._lease, reason, error)
        self.on_loss(self._lost)
        raise self._lost from error

    def _take_again(self) -> None:
        """Acquire under the next epoch, check, and only then hand the new lease out."""
        mine = self._lease
        asked_at = self._clock.monotonic_ms()
        give_up_at = asked_at + self.lease_ttl_ms
        while True:
            try:
                lease = self._ask_again(mine)
            except LeaseHeldError as error:
                if error.reason == "held" and (error.holder, error.epoch) == (
                    mine.owner,
                    mine.epoch,
                ):
                    return  # live again: the clock went back, or a renewal came through
                adopted = self._landed_in_doubt(error)
                if adopted is None:
                    self._lose("superseded" if error.reason == "held" else error.reason, error)
                lease = adopted
                break
            except (StoreBusyError, OutcomeUnknownError):
                if self._clock.monotonic_ms() >= give_up_at:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                break
        if lease.epoch != mine.epoch + 1 or not self._still_ours(lease, give_up_at):
            self._give_back(lease)
            refusal = LeaseHeldError(
                run_id=self.run_id, reason="superseded", offered=mine, epoch=lease.epoch
            )
            self._lose("superseded", refusal)
        self._lease = lease
        self._alive_at = asked_at
        self.reacquired += 1
        self.on_reacquired(lease.epoch)

    def _ask_again(self, mine: Lease) -> Lease:
        """Ask for the next grant, and note under whose name it is in doubt until it is told."""
        before = self._in_doubt
        if before is None and not self._calls.revives:
            self._in_doubt = self._fresh_owner()
        elif before is None:
            self._in_doubt = mine.owner
        try:
            lease = self._calls.revive(mine, self._in_doubt or mine.owner)
        except OutcomeUnknownError:
            raise
        except StoreError:
            self._in_doubt = before  # nothing happened this time
            raise
        self._in_doubt = None
        return lease

    def _landed_in_doubt(self, error: LeaseHeldError) -> Lease | None:
        """Return the grant that this object's own call in doubt was given after all, if so."""
        doubted, self._in_doubt = self._in_doubt, None
        if doubted is None or error.holder != doubted or error.epoch is None:
            return None
        return Lease(run_id=self.run_id, owner=doubted, epoch=error.epoch)

    def _still_ours(self, lease: Lease, give_up_at: int) -> bool:
        while True:
            try:
                return self.verify()
            except StoreBusyError:
                if self._clock.monotonic_ms() >= give_up_at:
                    self._give_back(lease)
                    raise
                time.sleep(_PAUSE_SECONDS)
            except Exception:
                self._give_back(lease)
                raise

    def _give_back(self, lease: Lease) -> None:
        try:
            self._calls.release(lease)
        except StoreError:
            return  # it runs out by itself; the loss is what the caller must learn of
