"""One clause being tried: its place, its actors, what they did, and what is known of it."""

from __future__ import annotations

import random
import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.actors import Actor
from rulvar.conformance.harness.failure import CheckFailure, NotVerified, Timeline, TooSlow
from rulvar.conformance.harness.state import RunState, differences, read_state
from rulvar.core.checks import check_run_id
from rulvar.core.errors import ConfigError, StoreClosedError, StoreForkedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rulvar.conformance.contract.clauses import Clause
    from rulvar.conformance.harness.children import Child, Children
    from rulvar.conformance.harness.state import Snapshot
    from rulvar.conformance.harness.store_under_test import TestLocation
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["CheckContext", "Settings"]

_T = TypeVar("_T")
_LONGEST_WAIT_MS = 5_000
_ODD_MS = 777
"""Where the clock that the kit moves begins: at no whole second, so that none is taken for one."""
_LONGEST_TEXT = 600


@dataclass(frozen=True, slots=True)
class Settings:
    """What a trial is made with, besides its place."""

    claim: frozenset[Level]
    seed: int
    children: Children
    lease_ttl_ms: int | None
    another_place: Callable[[], TestLocation]
    effort: int = 1
    wait_s: float = 30.0


class CheckContext:
    """What a check is given. Run ids are its own, so that a place may be shared."""

    def __init__(self, clause: Clause, place: TestLocation, settings: Settings) -> None:
        self.clause = clause
        self.place = place
        self.timeline = Timeline()
        self.refused_marks: list[str] = []
        self.counts: dict[str, int] = {}
        self._settings = settings
        self._started = time.monotonic()
        self._slept = 0.0
        self._marks = 0
        self._names: dict[str, str] = {}
        self._known: set[str] = set()
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self.random = random.Random(f"{settings.seed}:{clause.id}")  # noqa: S311 - no secret
        self._other: Stores | None = None
        self._token = f"{zlib.crc32(str(time.time_ns()).encode()):08x}"
        if place.clock is not None:
            place.clock.advance(_ODD_MS)
        self.stores = place.open()
        """The first handle."""

    # --- names ------------------------------------------------------------------------------

    def run_id(self, name: str = "run") -> str:
        """Return a run id of this trial, the same for the same name."""
        return self._names.setdefault(name, f"k{self._token}-{name}")

    def mark(self) -> str:
        """Return a token that stands in one written value and nowhere else."""
        with self._lock:
            self._marks += 1
            return f"<{self._token}:{self._marks}>"

    def knows(self, run_id: str) -> None:
        """Include the run in every snapshot from now on, unless no store could take its id."""
        try:
            self._known.add(check_run_id(run_id))
        except ConfigError:
            return

    @property
    def known(self) -> frozenset[str]:
        """The runs of this trial."""
        return frozenset(self._known)

    # --- who --------------------------------------------------------------------------------

    def actor(self, name: str, stores: Stores | None = None) -> Actor:
        """Return a caller on the first handle, or on another one."""
        return Actor(self, name, self.stores if stores is None else stores)

    def reopen(self) -> Stores:
        """Open another handle to the same state, in this process."""
        return self.place.open()

    def another_handle(self) -> Stores:
        """Return a second handle, the same one each time; the first where there can be no other."""
        if self._other is None:
            one_object = self.place.sharing.value == "object"
            self._other = self.stores if one_object else self.reopen()
        return self._other

    def child(self) -> tuple[Child, Stores]:
        """Return another process that has the same state open."""
        opener = self.place.opener()
        child = self.spare_child()
        return child, child.open(opener)

    def spare_child(self) -> Child:
        """Return another process that has nothing open yet."""
        child = self._settings.children.take()
        self._children.append(child)
        return child

    @property
    def effort(self) -> int:
        """How many times more than usual is to be tried where chance decides."""
        return self._settings.effort

    def another_place(self) -> TestLocation:
        """Return a new place that nothing has opened; the caller discards it."""
        return self._settings.another_place()

    @property
    def has_journal(self) -> bool:
        """Whether the journal half is part of what is claimed."""
        return Level.JOURNAL in self._settings.claim

    @property
    def has_blobs(self) -> bool:
        """Whether the transcript half is part of what is claimed."""
        return Level.TRANSCRIPTS in self._settings.claim

    def claims(self, level: Level) -> bool:
        """Whether the level is part of what is claimed."""
        return level in self._settings.claim

    # --- time -------------------------------------------------------------------------------

    @property
    def lease_ttl_ms(self) -> int:
        """How long a lease lives here. Raises `NotVerified` when nobody knows."""
        ttl = self._settings.lease_ttl_ms
        if ttl is None:
            message = "the store does not say lease_ttl_ms and takes no such option"
            raise NotVerified(message)
        return ttl

    def granted(self, lease: Lease) -> Lease:
        """Take note of a grant."""
        self.knows(lease.run_id)
        return lease

    def pass_ms(self, ms: int) -> None:
        """Let time pass: on the clock that the kit moves, or by waiting."""
        if self.place.clock is not None:
            self.place.clock.advance(ms)
            self.timeline.add("clock", f"{ms} ms pass", "ok")
            return
        if ms > _LONGEST_WAIT_MS:
            message = (
                f"it would wait {ms} ms for a lease to run out: let the store take the option "
                "lease_ttl_ms, or a clock"
            )
            raise NotVerified(message)
        began = time.monotonic()
        time.sleep(ms / 1000)
        self._slept += time.monotonic() - began
        self.timeline.add("clock", f"{ms} ms pass (waited)", "ok")

    def expire(self) -> None:
        """Let every lease run out that was granted or renewed so far."""
        if self.place.clock is not None:
            self.pass_ms(self.lease_ttl_ms)
        else:
            self.pass_ms(self.lease_ttl_ms + 25)

    @property
    def waits(self) -> bool:
        """Whether time is the machine's own, so that a check can come too late."""
        return self.place.clock is None

    def late(self) -> bool:
        """Whether the check worked for so long that a lease may have run out meanwhile."""
        worked_ms = (time.monotonic() - self._started - self._slept) * 1000
        ttl = self._settings.lease_ttl_ms
        return self.waits and ttl is not None and worked_ms > ttl * 0.5

    def tenures(self, worker: Actor, level: Level) -> Iterator[tuple[str, Lease | None]]:
        """Yield a run without a lease and, where that level is claimed, one with its live lease.

        A store's write under a lease is another statement than the one without.
        """
        yield self.run_id(), None
        if self.claims(level):
            run = self.run_id("leased")
            yield run, worker.acquire(run)

    # --- what can be read -------------------------------------------------------------------

    def snapshot(self, stores: Stores | None = None) -> Snapshot:
        """Read everything of this trial's runs."""
        return read_state(
            self.stores if stores is None else stores,
            self._known,
            blobs=self.has_blobs,
            journal=self.has_journal,
        )

    def state_of(self, run_id: str) -> RunState:
        """Read one run."""
        self.knows(run_id)
        return self.snapshot().get(run_id, RunState())

    # --- verdicts ---------------------------------------------------------------------------

    def fail(
        self,
        expected: str,
        got: str,
        *,
        before: Snapshot | None = None,
        after: Snapshot | None = None,
        note: str = "",
    ) -> NoReturn:
        """End the trial: the store broke the clause. Raises `CheckFailure` or `TooSlow`."""
        if self.clause.timed and self.late():
            message = f"{expected}: {got}, but a lease may have run out meanwhile"
            raise TooSlow(message)
        was: list[str] = []
        now: list[str] = []
        if before is not None:
            was, now = differences(before, before if after is None else after)
            if not was and after is not None:
                was = [f"{r!r}: {line}" for r, s in after.items() for line in s.lines()]
        raise CheckFailure(
            expected,
            got,
            timeline=tuple(self.timeline.lines()),
            before=tuple(was),
            after=tuple(now),
            note=note,
        )

    def require(self, holds: object, expected: str, got: object) -> None:
        """Go on if it holds, or end the trial."""
        if not holds:
            self.fail(expected, got if isinstance(got, str) else repr(got))

    def equal(self, what: str, got: object, expected: object) -> None:
        """Go on if the two are equal, or end the trial."""
        if got != expected:
            self.fail(f"{what} is {_long(expected)}", _long(got))

    def count(self, what: str, number: int = 1) -> None:
        """Count something that the certificate is to show."""
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + number

    # --- several at once --------------------------------------------------------------------

    def together(self, functions: Sequence[Callable[[], _T]]) -> list[_T]:
        """Call all of them at the same moment, each on a thread, and return their values.

        Raises the first thing that one of them raised.
        """
        barrier = threading.Barrier(len(functions))
        values: list[list[_T]] = [[] for _ in functions]
        errors: list[BaseException] = []

        def run(number: int, function: Callable[[], _T]) -> None:
            try:
                barrier.wait(self._settings.wait_s)
                values[number].append(function())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=each, daemon=True) for each in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        self.join(threads)
        if errors:
            raise errors[0]
        return [value[0] for value in values]

    def join(self, threads: Iterable[threading.Thread]) -> None:
        """Wait for threads. Fails the clause when one does not end."""
        deadline = time.monotonic() + self._settings.wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.fail(
                    f"every call ends within {self._settings.wait_s:.0f} s", "one of them did not"
                )

    # --- the end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Look for traces of what was refused, now and through a new handle."""
        if not self.refused_marks:
            return
        try:
            self._sweep(self.snapshot(), "at the end")
        except (StoreClosedError, StoreForkedError):
            return  # the check closed it
        if self.place.sharing.value == "object":
            return
        stores = self.place.open()
        self._sweep(self.snapshot(stores), "through a new handle")

    def _sweep(self, state: Snapshot, when: str) -> None:
        for run_id, found in state.items():
            text = b"\n".join(
                [
                    *(data for _, data in found.journal),
                    (found.row or "").encode(),
                    *(blob for _, blob in found.blobs if blob is not None),
                ]
            )
            for mark in self.refused_marks:
                if mark.encode() in text:
                    self.fail(
                        "what was refused never lands, now or later",
                        f"a refused value is there {when}, in run {run_id!r}: mark {mark}",
                    )

    def close(self) -> None:
        """Give back the processes and the place; clear a place that stays."""
        for child in self._children:
            self._settings.children.give_back(child)
        if not self.place.fresh:
            self._clear()
        self.place.discard()

    def _clear(self) -> None:
        for run_id in sorted(self._known):
            try:
                stores = self.place.open()  # the check may have closed every other handle
                if self.has_blobs:
                    for ref in stores.transcripts.list_refs(run_id):
                        stores.transcripts.delete(ref)
                if self.has_journal:
                    stores.journal.delete(run_id)
                stores.close()
            except Exception as error:  # noqa: BLE001 - the clauses judge the store
                self.timeline.add("kit", f"clearing {run_id!r}", f"{type(error).__name__}")
                return


def _long(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:400]}... ({len(text)} characters)"
