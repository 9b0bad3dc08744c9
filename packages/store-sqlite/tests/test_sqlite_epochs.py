"""Epochs grow for ever: nothing that happens to a run or its file brings a number back."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core.checks import MAX_INTEGER
from rulvar.core.errors import ConfigError, LeaseHeldError, StoreFullError
from rulvar.core.records import JournalRecord, Lease, RunMeta
from rulvar.core.testing import ManualClock
from rulvar.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

TTL_MS = 1_000


def in_another_process(path: Path, code: str) -> str:
    head = "import sys\nfrom rulvar.stores.sqlite import SqliteStore\n"
    head += "store = SqliteStore(sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_every_ending_is_followed_by_a_higher_epoch(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    store = SqliteStore(path, lease_ttl_ms=TTL_MS, clock=clock)
    granted = [store.acquire("run", "same").epoch]

    store.release(Lease(run_id="run", owner="same", epoch=1))
    granted.append(store.acquire("run", "same").epoch)

    clock.advance(TTL_MS)
    granted.append(store.acquire("run", "same").epoch)

    granted.append(store.seize("run", "same").epoch)

    store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
    store.delete("run", lease=Lease(run_id="run", owner="same", epoch=4))
    granted.append(store.acquire("run", "same").epoch)

    store.delete("run")
    granted.append(store.acquire("run", "same").epoch)

    store.delete_whole_run("run")
    granted.append(store.acquire("run", "same").epoch)

    # From here on nothing but the tombstone is left to count from.
    store.release(Lease(run_id="run", owner="same", epoch=7))
    store.close()
    vacuum = apsw.Connection(str(path))
    vacuum.execute("VACUUM").fetchall()
    vacuum.close()
    store = SqliteStore(path, lease_ttl_ms=TTL_MS, clock=clock)
    granted.append(store.acquire("run", "same").epoch)

    store.release(Lease(run_id="run", owner="same", epoch=8))
    store.close()
    take_and_let_go = """
lease = store.acquire("run", "same")
store.release(lease)
store.close()
print(lease.epoch)
"""
    granted += [int(in_another_process(path, take_and_let_go)) for _ in range(2)]
    assert granted == list(range(1, 11))


def test_a_lease_row_above_its_tombstone_is_counted_from_too(tmp_path: Path) -> None:
    """Damage or a careless copy can leave one; its number must not be granted a second time."""
    path, clock = tmp_path / "runs.db", ManualClock()
    with SqliteStore(path, lease_ttl_ms=TTL_MS, clock=clock) as store:
        store.acquire("run", "owner")
        damage = apsw.Connection(str(path))
        damage.execute("UPDATE leases SET epoch = 7")
        damage.close()
        assert store.acquire("run", "owner").epoch == 8


KILLED = """
import os, signal, sys
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore
path, durability, seq = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = SqliteStore(path, durability=durability)
store.append("run", JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq))
os.write(1, str(store.seize("run", "killed").epoch).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_granted_epoch_survives_a_kill_right_after_acquire(
    durability: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    for expected in (1, 2, 3):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), durability, str(expected)],
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert int(done.stdout) == expected
    with SqliteStore(path) as store:
        assert [record.seq for record in store.load("run")] == [1, 2, 3]
        assert store.seize("run", "next").epoch == 4


def test_a_grant_is_synced_at_every_setting(tmp_path: Path) -> None:
    """Under "normal" nothing else is, and what a grant asks for does not stick."""
    levels: list[tuple[str, object]] = []
    with SqliteStore(tmp_path / "runs.db", durability="normal") as store:
        (connection,) = store._database._committer.connections()

        def note(_cursor: object, statement: str, _bound: object) -> bool:
            if statement.startswith(("INSERT INTO epochs", "INSERT INTO meta", "UPDATE epochs")):
                level = connection.pragma("synchronous")
                levels.append((statement.split()[2].strip(), level))
            return True

        meta = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")
        connection.set_exec_trace(note)
        store.put_meta(meta)
        store.acquire("run", "owner")
        store.put_meta(meta)
        store.seize("run", "owner")
        store.raise_epoch("run", 9)
        store.put_meta(meta)
        connection.set_exec_trace(None)
    assert levels == [
        ("meta", 1),
        ("epochs", 2),
        ("meta", 1),
        ("epochs", 2),
        ("epochs", 2),
        ("meta", 1),
    ]


def test_a_held_run_refuses_everybody_the_same_owner_too(tmp_path: Path) -> None:
    clock = ManualClock()
    with SqliteStore(tmp_path / "runs.db", lease_ttl_ms=TTL_MS, clock=clock) as store:
        lease = store.acquire("run", "same")
        for owner in ("same", "other"):
            with pytest.raises(LeaseHeldError) as held:
                store.acquire("run", owner)
            assert held.value.reason == "held"
            assert held.value.retryable
            assert held.value.offered is None
            assert (held.value.holder, held.value.epoch) == ("same", 1)
            assert held.value.expires_at == clock.now_ms() + TTL_MS
        clock.advance(TTL_MS - 1)
        store.renew(lease)
        clock.advance(TTL_MS - 1)
        with pytest.raises(LeaseHeldError):
            store.acquire("run", "other")
        clock.advance(1)
        assert store.acquire("run", "other").epoch == 2


def test_revive_serves_the_holder_of_an_expired_lease_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with SqliteStore(tmp_path / "runs.db", lease_ttl_ms=TTL_MS, clock=clock) as store:
        lease = store.acquire("run", "owner")
        clock.advance(10 * TTL_MS)
        with pytest.raises(LeaseHeldError) as forged:
            store.revive(Lease(run_id="run", owner="forger", epoch=1))
        assert forged.value.reason == "unknown"
        revived = store.revive(lease)
        assert revived == Lease(run_id="run", owner="owner", epoch=2)
        assert store.get_lease("run") is not None
        store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=revived)
        with pytest.raises(LeaseHeldError) as twice:
            store.revive(lease)
        assert twice.value.reason == "superseded"


def test_a_raised_mark_ends_the_lease_and_never_falls(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        store.raise_epoch("fresh", 0)
        with pytest.raises(LeaseHeldError) as unknown:
            store.renew(Lease(run_id="fresh", owner="o", epoch=0))
        assert unknown.value.reason == "unknown"
        store.acquire("run", "owner")
        store.raise_epoch("run", 7)
        assert store.get_lease("run") is None
        store.raise_epoch("run", 3)
        assert store.acquire("run", "owner").epoch == 8


def test_epochs_stay_within_what_every_language_counts(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        with pytest.raises(ConfigError):
            store.raise_epoch("run", MAX_INTEGER + 1)
        store.raise_epoch("run", MAX_INTEGER - 1)
        assert store.acquire("run", "last").epoch == MAX_INTEGER
        for grant in (store.seize, store.acquire):
            with pytest.raises((StoreFullError, LeaseHeldError)):
                grant("run", "one more")
        assert store.seize("another", "goes on").epoch == 1


def test_the_first_acquire_of_one_run_has_exactly_one_winner(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    stores = [SqliteStore(path) for _ in range(4)]
    barrier = threading.Barrier(16)
    won: list[Lease] = []
    lost: list[str] = []

    def start(number: int) -> None:
        barrier.wait()
        try:
            won.append(stores[number % 4].acquire("run", f"worker-{number}"))
        except LeaseHeldError as held:
            lost.append(held.reason)

    crowd = [threading.Thread(target=start, args=(number,)) for number in range(16)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    for store in stores:
        store.close()
    assert [lease.epoch for lease in won] == [1]
    assert lost == ["held"] * 15


@pytest.mark.slow
def test_processes_that_race_for_one_run_have_exactly_one_winner(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    code = """
import sys
from rulvar.core.errors import LeaseHeldError
from rulvar.stores.sqlite import SqliteStore
sys.stdin.readline()
try:
    print(SqliteStore(sys.argv[1]).acquire("run", sys.argv[2]).epoch)
except LeaseHeldError as held:
    print(held.reason)
"""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), f"worker-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = sorted(racer.communicate(timeout=60)[0].strip() for racer in racers)
    assert said == ["1", "held", "held", "held"]


def test_leases_are_listed_in_pages_by_the_bytes_of_their_run(tmp_path: Path) -> None:
    clock = ManualClock()
    with SqliteStore(tmp_path / "runs.db", lease_ttl_ms=TTL_MS, clock=clock) as store:
        names = ["a", "b", "\uffee", "\U0001f600"]
        for name in reversed(names):
            store.acquire(name, "owner")
        clock.advance(TTL_MS - 1)
        store.renew(Lease(run_id="b", owner="owner", epoch=1))
        clock.advance(1)
        first = store.list_leases(None, 3)
        assert [info.run_id for info in first] == names[:3]
        assert [info.live for info in first] == [False, True, False]
        assert [info.run_id for info in store.list_leases("\uffee", 3)] == names[3:]
        assert store.get_lease("nobody") is None
