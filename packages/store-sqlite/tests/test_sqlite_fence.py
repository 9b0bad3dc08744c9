"""The fence on every surface: the holder of a dead lease changes nothing.

Each mutator is tried with each kind of dead lease, and a canonical dump of the file is the
same before and after. Then a takeover is forced between check and write: before the lock is
taken the zombie is refused, after it the successor has to wait.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.errors import ConfigError, JournalOrderViolation, LeaseHeldError, StoreBusyError
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite.group_commit import Committer
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.records import LeaseInfo

RUN = "run"
OTHER = "other"
TTL_MS = 1_000

Mutator = Callable[[SqliteStore, Lease], object]
Undertaker = Callable[[SqliteStore, ManualClock], Lease]


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d,"kind":"step"}' % seq)


def row(run_id: str = RUN, status: str = "running") -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at="2026-01-01T00:00:00.000Z")


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return everything that the file holds, through a connection of its own."""
    connection = apsw.Connection(str(path))
    tables = [
        str(name)
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
    ]
    found = {
        table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for table in tables
    }
    connection.close()
    return found


def started(path: Path, clock: ManualClock) -> SqliteStore:
    """Open a store in which two runs have a past."""
    store = SqliteStore(path, lease_ttl_ms=TTL_MS, busy_timeout_ms=100, clock=clock)
    for run_id in (RUN, OTHER):
        store.append(run_id, record(5))
        store.put_meta(row(run_id))
        store.transcripts().put(f"{run_id}/old", b"old")
    return store


MUTATORS: dict[str, Mutator] = {
    "append": lambda store, lease: store.append(RUN, record(6), lease=lease),
    "append of a stale seq": lambda store, lease: store.append(RUN, record(5), lease=lease),
    "put_meta": lambda store, lease: store.put_meta(row(status="ok"), lease=lease),
    "delete": lambda store, lease: store.delete(RUN, lease=lease),
    "delete_whole_run": lambda store, lease: store.delete_whole_run(RUN, lease=lease),
    "blob put, new": lambda store, lease: store.transcripts().put(f"{RUN}/new", b"1", lease=lease),
    "blob put, over": lambda store, lease: store.transcripts().put(f"{RUN}/old", b"1", lease=lease),
    "blob delete": lambda store, lease: store.transcripts().delete(f"{RUN}/old", lease=lease),
    "blob delete, missing": lambda store, lease: store.transcripts().delete(
        f"{RUN}/none", lease=lease
    ),
}
ON_ITS_OWN_RUN: dict[str, Mutator] = {
    "renew": lambda store, lease: store.renew(lease),
    "release": lambda store, lease: store.release(lease),
    "revive": lambda store, lease: store.revive(lease),
}


def superseded(store: SqliteStore, clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "same")
    clock.advance(TTL_MS)
    store.acquire(RUN, "same")
    return dead


def seized(store: SqliteStore, _clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    store.seize(RUN, "successor")
    return dead


def released(store: SqliteStore, _clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    store.release(dead)
    return dead


def ended_by_delete(store: SqliteStore, _clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    store.delete(RUN, lease=dead)
    store.append(RUN, record(5))
    store.put_meta(row())
    return dead


def of_a_deleted_incarnation(store: SqliteStore, clock: ManualClock) -> Lease:
    dead = ended_by_delete(store, clock)
    store.acquire(RUN, "owner")
    return dead


def expired(store: SqliteStore, clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    clock.advance(TTL_MS)
    return dead


def above_the_mark(store: SqliteStore, _clock: ManualClock) -> Lease:
    live = store.acquire(RUN, "owner")
    return Lease(run_id=RUN, owner="owner", epoch=live.epoch + 1)


def of_a_run_without_leases(_store: SqliteStore, _clock: ManualClock) -> Lease:
    return Lease(run_id=RUN, owner="owner", epoch=1)


def of_another_owner(store: SqliteStore, _clock: ManualClock) -> Lease:
    live = store.acquire(RUN, "owner")
    return Lease(run_id=RUN, owner="forger", epoch=live.epoch)


def below_a_raised_mark(store: SqliteStore, _clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    store.raise_epoch(RUN, 40)
    return dead


def ended_by_a_raised_mark(store: SqliteStore, _clock: ManualClock) -> Lease:
    dead = store.acquire(RUN, "owner")
    store.raise_epoch(RUN, dead.epoch)
    return dead


DEAD: dict[str, tuple[Undertaker, str]] = {
    "superseded": (superseded, "superseded"),
    "seized": (seized, "superseded"),
    "released": (released, "released"),
    "ended by delete": (ended_by_delete, "released"),
    "of a deleted incarnation": (of_a_deleted_incarnation, "superseded"),
    "expired": (expired, "expired"),
    "forged epoch": (above_the_mark, "unknown"),
    "never granted": (of_a_run_without_leases, "unknown"),
    "forged owner": (of_another_owner, "unknown"),
    "below a raised mark": (below_a_raised_mark, "superseded"),
    "ended by a raised mark": (ended_by_a_raised_mark, "released"),
}


@pytest.mark.parametrize("kind", DEAD)
def test_no_mutator_lets_a_dead_lease_change_a_byte(kind: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    undertaker, reason = DEAD[kind]
    with started(path, clock) as store:
        dead = undertaker(store, clock)
        present = store.get_lease(RUN)
        before = dump(path)
        for name, mutate in {**MUTATORS, **ON_ITS_OWN_RUN}.items():
            if name == "revive" and reason == "expired":
                continue  # the one thing that an expired lease is good for
            with pytest.raises(LeaseHeldError) as refused:
                mutate(store, dead)
            assert refused.value.reason == reason, name
            assert refused.value.run_id == RUN
            assert refused.value.offered == dead
            assert not refused.value.retryable
            assert_names(refused.value, present)
            assert dump(path) == before, name


def assert_names(error: LeaseHeldError, present: LeaseInfo | None) -> None:
    """The error names the present holder exactly when there is a live one."""
    if present is not None and present.live:
        shown = (error.holder, error.epoch, error.expires_at)
        assert shown == (present.owner, present.epoch, present.expires_at)
    else:
        assert (error.holder, error.epoch, error.expires_at) == (None, None, None)


@pytest.mark.parametrize("alive", [True, False])
def test_a_lease_of_another_run_changes_nothing(alive: bool, tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    with started(path, clock) as store:
        foreign = store.acquire(OTHER, "owner")
        store.acquire(RUN, "owner")
        if not alive:
            store.seize(OTHER, "successor")
        before = dump(path)
        for name, mutate in MUTATORS.items():
            with pytest.raises(LeaseHeldError) as refused:
                mutate(store, foreign)
            assert refused.value.reason == "foreign-run", name
            assert dump(path) == before, name


@pytest.mark.parametrize("name", [*MUTATORS, *ON_ITS_OWN_RUN])
def test_the_live_lease_lands(name: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    with started(path, clock) as store:
        lease = store.acquire(RUN, "owner")
        clock.advance(TTL_MS - 1)
        before = dump(path)
        if name == "append of a stale seq":
            with pytest.raises(JournalOrderViolation) as stale:
                MUTATORS[name](store, lease)
            assert (stale.value.seq, stale.value.tail_seq) == (5, 5)
            assert dump(path) == before
        elif name == "revive":
            with pytest.raises(LeaseHeldError) as held:
                store.revive(lease)
            shown = (held.value.reason, held.value.holder, held.value.epoch)
            assert shown == ("held", "owner", lease.epoch)
            assert dump(path) == before
        else:
            {**MUTATORS, **ON_ITS_OWN_RUN}[name](store, lease)
            assert (dump(path) != before) == (name != "blob delete, missing")


def test_a_dead_lease_is_reported_even_when_the_seq_is_stale_too(tmp_path: Path) -> None:
    clock = ManualClock()
    with started(tmp_path / "runs.db", clock) as store:
        dead = superseded(store, clock)
        with pytest.raises(LeaseHeldError):
            store.append(RUN, record(1), lease=dead)


def test_arguments_are_checked_before_the_fence_and_before_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    store = started(tmp_path / "runs.db", clock)
    foreign = store.acquire(OTHER, "owner")
    store.close()
    with pytest.raises(ConfigError):
        store.append("a/b", record(9), lease=foreign)
    with pytest.raises(ConfigError):
        store.append(RUN, JournalRecord(seq=1, payload=b"{}"), lease=foreign)
    with pytest.raises(ConfigError):
        store.renew(Lease(run_id=RUN, owner="", epoch=1))
    with pytest.raises(ConfigError):
        store.transcripts().put(RUN, b"", lease=foreign)


def test_a_lease_row_whose_epoch_is_not_the_tombstones_is_dead(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    with started(path, clock) as store:
        lease = store.acquire(RUN, "owner")
        damage = apsw.Connection(str(path))
        damage.execute("UPDATE epochs SET epoch = 9 WHERE run_id = ?", (RUN,))
        damage.close()
        info = store.get_lease(RUN)
        assert info is not None
        assert not info.live
        before = dump(path)
        claimed = Lease(run_id=RUN, owner="owner", epoch=9)
        for held, reason in ((lease, "superseded"), (claimed, "released")):
            for name, mutate in MUTATORS.items():
                with pytest.raises(LeaseHeldError) as refused:
                    mutate(store, held)
                assert refused.value.reason == reason, name
        assert dump(path) == before
        assert store.acquire(RUN, "next").epoch == 10


# --- a takeover between check and write ---------------------------------------------------

TAKEN_FROM: dict[str, Mutator] = {
    **{name: mutate for name, mutate in MUTATORS.items() if name != "append of a stale seq"},
    "renew": ON_ITS_OWN_RUN["renew"],
    "release": ON_ITS_OWN_RUN["release"],
}


@pytest.mark.parametrize("name", TAKEN_FROM)
def test_a_takeover_before_the_lock_refuses_the_zombie(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    with started(path, clock) as victim, SqliteStore(path, clock=clock) as rival:
        stalled = victim.acquire(RUN, "same")
        begin = Committer._begin
        after_takeover: list[object] = []

        def begin_after_a_takeover(self: Committer, *args: object, **options: object) -> bool:
            if not after_takeover and self is victim._database._committer:
                after_takeover.append(None)
                rival.seize(RUN, "same")
                after_takeover[0] = dump(path)
            return begin(self, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Committer, "_begin", begin_after_a_takeover)
        with pytest.raises(LeaseHeldError) as refused:
            TAKEN_FROM[name](victim, stalled)
        assert refused.value.reason == "superseded"
        assert [dump(path)] == after_takeover


def turned_away_while(
    victim: SqliteStore, rival: SqliteStore, mutate: Callable[[], object]
) -> list[str]:
    """Have the rival seize before every statement but the BEGIN that takes the lock.

    A second BEGIN would be a second unit, with a gap before it. Return the statements at
    which the rival was told to wait.
    """
    turned_away: list[str] = []
    begun: list[str] = []

    def take_over(_cursor: object, statement: str, _bound: object) -> bool:
        if begun:
            with pytest.raises(StoreBusyError):
                rival.seize(RUN, "same")
            turned_away.append(statement)
        else:
            begun.append(statement)
        return True

    (connection,) = victim._database._committer.connections()
    connection.set_exec_trace(take_over)
    mutate()
    connection.set_exec_trace(None)
    assert begun == ["BEGIN IMMEDIATE"]
    return turned_away


@pytest.mark.parametrize("name", TAKEN_FROM)
def test_a_takeover_after_the_check_has_to_wait_for_the_write(name: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    eager = SqliteStore(path, lease_ttl_ms=TTL_MS, busy_timeout_ms=0, clock=clock)
    with started(path, clock) as victim, eager as rival:
        stalled = victim.acquire(RUN, "same")
        clock.advance(1)  # so that a renewal shows
        before = dump(path)
        turned_away = turned_away_while(victim, rival, lambda: TAKEN_FROM[name](victim, stalled))
        assert len(turned_away) >= 2  # the mutation's statements, and COMMIT
        assert (dump(path) != before) == (name != "blob delete, missing")
        successor = rival.seize(RUN, "same")
        assert successor.epoch == stalled.epoch + 1
        settled = dump(path)
        with pytest.raises(LeaseHeldError):
            TAKEN_FROM[name](victim, stalled)
        assert dump(path) == settled


GRANTS: dict[str, Callable[[SqliteStore, Lease], object]] = {
    "acquire": lambda store, expired: store.acquire(expired.run_id, "same"),
    "revive": lambda store, expired: store.revive(expired),
    "seize": lambda store, expired: store.seize(expired.run_id, "same"),
    "raise_epoch": lambda store, expired: store.raise_epoch(expired.run_id, expired.epoch + 1),
}


@pytest.mark.parametrize("name", GRANTS)
def test_nobody_comes_between_the_look_at_the_mark_and_the_grant(name: str, tmp_path: Path) -> None:
    """Or two could be granted one number, which no fence can tell apart afterwards."""
    path, clock = tmp_path / "runs.db", ManualClock()
    eager = SqliteStore(path, lease_ttl_ms=TTL_MS, busy_timeout_ms=0, clock=clock)
    with started(path, clock) as store, eager as rival:
        lapsed = expired(store, clock)
        turned_away = turned_away_while(store, rival, lambda: GRANTS[name](store, lapsed))
        assert len(turned_away) >= 3  # the look or the lift, the grant, and COMMIT
        assert rival.seize(RUN, "rival").epoch == lapsed.epoch + 2


def test_the_clock_is_read_under_the_lock(tmp_path: Path) -> None:
    """A takeover tried by the clock itself, the one thing of the user's inside, has to wait."""
    path = tmp_path / "runs.db"
    tried: list[str] = []

    class Meddling(ManualClock):
        def now_ms(self) -> int:
            if tried:
                with pytest.raises(StoreBusyError):
                    rival.seize(RUN, "rival")
                tried.append("refused")
            return super().now_ms()

    rival = SqliteStore(path, lease_ttl_ms=TTL_MS, busy_timeout_ms=0, clock=ManualClock())
    with rival, SqliteStore(path, clock=Meddling()) as store:
        lease = store.acquire(RUN, "owner")
        tried.append("armed")
        store.append(RUN, record(1), lease=lease)
        assert tried == ["armed", "refused"]
        tried.clear()


LATE = """
import sys
from rulvar.core.errors import LeaseHeldError
from rulvar.core.records import Lease
from rulvar.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
stalled = store.acquire("run", "same")
print(stalled.epoch, flush=True)
sys.stdin.readline()
for call in (store.release, store.renew):
    try:
        call(stalled)
    except LeaseHeldError as refused:
        print(refused.reason, refused.holder, refused.epoch, flush=True)
"""


@pytest.mark.slow
def test_a_late_release_or_renew_of_another_process_spares_the_successor(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    stalled = subprocess.Popen(
        [sys.executable, "-c", LATE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stalled.stdin is not None
    assert stalled.stdout is not None
    assert stalled.stdout.readline() == "1\n"
    with SqliteStore(path) as store:
        successor = store.seize(RUN, "same")
        before = dump(path)
        stalled.stdin.write("thaw\n")
        stalled.stdin.flush()
        said, _ = stalled.communicate(timeout=30)
        assert said.splitlines() == ["superseded same 2", "superseded same 2"]
        assert dump(path) == before
        store.renew(successor)
