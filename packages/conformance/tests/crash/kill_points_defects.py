"""Stores and engines that lose, repeat or leave behind something when a process dies.

Each function opens a sound SQLite store for one process of a workload and spoils what that
process does with it: a wrapper over the store, or a patch of the engine, which is this
process's alone.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from rulvar.conformance.harness.machine_clock import true_now_ms
from rulvar.core import Stores, open_stores
from rulvar.core.engine import driver
from rulvar.core.engine.admin import run_admin
from rulvar.core.engine.calls import git, steps
from rulvar.core.engine.calls import turns as turn_loops
from rulvar.core.engine.calls.context import Context
from rulvar.core.engine.io import mutations
from rulvar.core.engine.kernel.endings import Ending
from rulvar.core.engine.kernel.replay import Answered
from rulvar.core.engine.lease import ownership, writer
from rulvar.core.engine.segment import begin
from rulvar.core.engine.segment.lifecycle import Segment
from rulvar.core.engine.segment.scope import unwrap
from rulvar.core.errors import StoreBusyError
from rulvar.core.journal import encode_entry
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.spi import SystemClock
from rulvar.core.testing import WatchedStores
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance import Home
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta
    from rulvar.core.testing import StoreCall

    Around = Callable[[StoreCall, Callable[[], object]], object]


def spoil(owner: object, name: str, value: object) -> None:
    """Put something else in the place of a part of the engine, in this process."""
    if not hasattr(owner, name):
        message = f"{owner!r} has no {name!r} any more"
        raise AttributeError(message)
    setattr(owner, name, value)


def open_sound(home: Home) -> Stores:
    """Nothing is wrong with it."""
    path = (home.folder / "runs.db").as_posix()
    return open_stores(f"sqlite:///{path}?lease_ttl_ms={home.lease_ttl_ms}")


class Wrapped:
    """A pair whose calls pass through a function; closed with the store below."""

    def __init__(self, home: Home, around: Around) -> None:
        self._below = open_sound(home)
        watched = WatchedStores(self._below, around=around)
        self.journal = watched.journal
        self.transcripts = watched.transcripts

    def close(self) -> None:
        self._below.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wrapped(home: Home, around: Around) -> Stores:
    return cast("Stores", Wrapped(home, around))


# --- stores ---------------------------------------------------------------------------------


def late(home: Home, method: str) -> Stores:
    """One kind of call is answered at once, and made with the next call of any kind."""
    held: list[Callable[[], object]] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        while held:
            held.pop(0)()
        if f"{call.part}.{call.method}" == method:
            held.append(perform)
            return None
        return perform()

    return wrapped(home, around)


def open_late_appends(home: Home) -> Stores:
    return late(home, "journal.append")


def open_late_rows(home: Home) -> Stores:
    return late(home, "journal.put_meta")


def open_late_blobs(home: Home) -> Stores:
    return late(home, "transcripts.put")


def open_blobs_written_once(home: Home) -> Stores:
    """A blob that is there is not overwritten, and nobody is told."""
    sound = open_sound(home)

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        if call.method == "put":
            ref = cast("str", call.arguments[0])
            if "/ckpt/" in ref and sound.transcripts.get(ref) is not None:
                return None
        return perform()

    return wrapped(home, around)


def open_lock_left_behind(home: Home) -> Stores:
    """Its lock is a file that a dead process cannot remove."""
    lock = home.folder / "lock"
    lock.touch(exist_ok=False)

    class Locked(Wrapped):
        def close(self) -> None:
            super().close()
            lock.unlink()

    return cast("Stores", Locked(home, lambda _call, perform: perform()))


def open_stuck(home: Home) -> Stores:
    """Whoever comes after a dead process waits for ever."""
    marker = home.folder / "in-use"
    while marker.exists() and marker.read_text() != str(os.getpid()):
        time.sleep(60)
    marker.write_text(str(os.getpid()))

    class InUse(Wrapped):
        def close(self) -> None:
            super().close()
            marker.unlink()

    return cast("Stores", InUse(home, lambda _call, perform: perform()))


def open_true_time(home: Home) -> Stores:
    """A sound store that takes its time from elsewhere, as a server's does."""
    path = home.folder / "runs.db"
    store = SqliteStore(path, lease_ttl_ms=home.lease_ttl_ms, clock=TrueClock())
    return Stores(store, store.transcripts())


class TrueClock(SystemClock):
    """The machine's clock, whatever this process believes."""

    def now_ms(self) -> int:
        return true_now_ms()


def half_done(home: Home, method: str) -> Stores:
    """One kind of call leaves the place locked until the next call of its process."""
    lock = home.folder / "half-done"
    if lock.exists():
        message = "the place is locked"
        raise StoreBusyError(message)

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        lock.unlink(missing_ok=True)
        if call.method == method:
            lock.touch()
        return perform()

    return wrapped(home, around)


def open_seizure_half_done(home: Home) -> Stores:
    return half_done(home, "seize")


def open_renewal_of_many_half_done(home: Home) -> Stores:
    return half_done(home, "renew_all")


_opened_by: dict[str, int] = {}


def _in_forked_child(home: Home) -> bool:
    """Whether a process that this one was forked from has opened the place."""
    return _opened_by.setdefault(str(home.folder), os.getpid()) != os.getpid()


def open_forked_child_let_in(home: Home) -> Stores:
    """An append by a forked child on its parent's store is dropped, and nobody is told."""
    process = os.getpid()

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        return None if call.method == "append" and os.getpid() != process else perform()

    return wrapped(home, around)


def open_forked_child_takes_the_log(home: Home) -> Stores:
    """A forked child that opens the file takes the log away from under its parent."""
    if _in_forked_child(home):
        for name in ("runs.db-wal", "runs.db-shm"):
            (home.folder / name).unlink()
        home = replace(home, folder=Path(tempfile.mkdtemp(dir=home.folder)))
    return open_sound(home)


# --- engines --------------------------------------------------------------------------------


def open_row_before_settle(home: Home) -> Stores:
    def settle(self: writer.RunWriter, draft: Any, meta: RunMeta) -> object:
        self._put_meta(meta)
        entry = None if draft is None else self.append(draft)
        self._sealed = "it has settled"
        return entry

    spoil(writer.RunWriter, "settle", settle)
    return open_sound(home)


def open_journal_deleted_first(home: Home) -> Stores:
    def delete_run(self: mutations.FencedCalls, authority: Any, run_id: str) -> None:
        refs = list(self._transcripts.list_refs(run_id))
        self._journal.delete(run_id)
        for ref in refs:
            self._transcripts.delete(ref)
        del authority

    spoil(mutations.FencedCalls, "delete_run", delete_run)
    return open_sound(home)


def open_blobs_never_deleted(home: Home) -> Stores:
    def delete_run(self: mutations.FencedCalls, authority: Any, run_id: str) -> None:
        cast("Any", self._journal).delete(run_id, lease=authority)

    spoil(mutations.FencedCalls, "delete_run", delete_run)
    return open_sound(home)


def open_deaths_not_told(home: Home) -> Stores:
    """A segment that comes after a death goes on as if its predecessor had settled."""
    spoil(begin, "recover", lambda *_arguments, **_options: None)
    return open_sound(home)


def open_epochs_fall(home: Home) -> Stores:
    def encode(entry: JournalEntry) -> bytes:
        return encode_entry(replace(entry, epoch=1_000 - (entry.epoch or 0)))

    spoil(writer, "encode_entry", encode)
    return open_sound(home)


def open_chance_not_recorded(home: Home) -> Stores:
    async def drawn(_self: Context) -> float:
        return random.random()

    spoil(Context, "random", drawn)
    return open_sound(home)


def open_settled_again(home: Home) -> Stores:
    spoil(begin.RunState, "outcome", None)
    record = driver._record

    def always(segment: Any, booted: Any, status: str, result: Any) -> None:
        record(segment, replace(booted, grown=True, last=None), status, result)

    spoil(driver, "_record", always)
    return open_sound(home)


def open_row_not_healed(home: Home) -> Stores:
    over = begin.over

    class Mute:
        def __init__(self, inner: writer.RunWriter) -> None:
            self.run_id, self.epoch = inner.run_id, inner.epoch

        def put_meta(self, _meta: RunMeta) -> None:
            return

    def unhealed(parts: Any, inner: Any, state: Any, last: Any) -> Any:
        return over(parts, cast("Any", Mute(inner)), state, last)

    spoil(begin, "over", unhealed)
    spoil(run_admin, "over", unhealed)
    return open_sound(home)


def open_checkpoint_misnamed(home: Home) -> Stores:
    def ref(self: Any) -> str:
        return f"{self._segment.run_id}/ckpt-{self._at.turns}"

    spoil(turn_loops._Loop, "_checkpoint_ref", property(ref))
    return open_sound(home)


def open_patch_lost(home: Home) -> Stores:
    """The patch of a worktree is taken away when its run has settled."""
    settle = writer.RunWriter.settle

    def then_clear(self: writer.RunWriter, draft: Any, meta: RunMeta) -> object:
        entry = settle(self, draft, meta)
        if meta.status in TERMINAL_STATUSES:
            for blob in self._reads.refs(self.run_id):
                if "/patch/" in blob:
                    self._mutations.delete_blob(self.authority(), blob)
        return entry

    spoil(writer.RunWriter, "settle", then_clear)
    return open_sound(home)


def open_steps_paid_twice(home: Home) -> Stores:
    async def step(scope: Any, name: str, plan: Any) -> object:
        opened = await scope.open("step", name, args=plan.args)
        if isinstance(opened, Answered):
            if opened.answer.status == "ok":
                await steps.call(scope.segment, plan.function, plan.args)
            return unwrap(opened.answer, scope.segment.run_id)
        return await steps._perform(scope, opened, plan)

    spoil(steps, "step", step)
    return open_sound(home)


def open_few_checkpoints(home: Home) -> Stores:
    """Only the first checkpoint of a loop is kept."""
    put = turn_loops._Loop._put

    async def once(self: Any, ref: str, blob: bytes) -> None:
        if "/ckpt/" not in ref or not getattr(self, "kept", False):
            self.kept = True
            await put(self, ref, blob)

    spoil(turn_loops._Loop, "_put", once)
    return open_sound(home)


def open_lease_kept(home: Home) -> Stores:
    spoil(ownership.OwnedLease, "release", lambda _self: None)
    return open_sound(home)


def open_children_cancelled_alone(home: Home) -> Stores:
    """A run that is cancelled has its children end as cancelled before its journal says so."""
    end = Segment.end

    def ask_first(self: Any, ending: Ending) -> None:
        if ending is Ending.CANCELLED and self.ending is None:
            for child in self.children.values():
                child._ask(Ending.CANCELLED)
        end(self, ending)

    spoil(Segment, "end", ask_first)
    return open_sound(home)


def open_worktree_left(home: Home) -> Stores:
    # Neither what an earlier segment nor what a process that died has left is cleared away.
    for name in ("_clear", "_remove_dead", "_forget_dead"):
        spoil(git, name, lambda *_: None)
    return open_sound(home)
