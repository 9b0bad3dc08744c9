"""The parts of a storm by themselves: what a process is told, asks, inherits and suffers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rulvar.conformance.harness.machine_clock import offset_ms, set_offset
from rulvar.conformance.soak.client import (
    MutationCall,
    RecordingClient,
    blob_of,
    encoded,
    look_at,
    record_of,
    row_of,
    stored,
)
from rulvar.conformance.soak.history import Recorder, read_history
from rulvar.conformance.soak.leases import Tenure, inherit
from rulvar.conformance.soak.local_faults import StopNotice, WrongClock, block
from rulvar.conformance.soak.orders import Orders, OrdersFile, publish
from rulvar.conformance.soak.plan import CI
from rulvar.core import Lease, Stores
from rulvar.core.errors import (
    JournalOrderViolation,
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreFullError,
)
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from pathlib import Path

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="stops processes")


def client_over(store: ReferenceStore, folder: Path) -> RecordingClient:
    return RecordingClient(Stores(store, store.transcripts()), Recorder(folder, 1, 1), blobs=True)


def mutation(lease: Lease, *, run_id: str | None = None, seq: int = 0) -> MutationCall:
    return MutationCall(run_id or lease.run_id, lease, "", 1, seq, "turn", 10)


# --- orders ---------------------------------------------------------------------------------


def test_orders_arrive_whole_and_the_end_of_them_too(tmp_path: Path) -> None:
    orders = Orders(
        runs=("a", "b"),
        side_runs=("s",),
        targets=("a",),
        frozen={"2": (3, 4)},
        thin={"append stopped": 3},
        dead_share=0.25,
        self_stops=True,
    )
    publish(tmp_path, orders)
    file = OrdersFile(tmp_path)
    assert file.look() == orders
    publish(tmp_path, Orders(ending=True))
    assert file.look().ending


# --- what is stored -------------------------------------------------------------------------


def test_whatever_is_written_bears_its_attempt(tmp_path: Path) -> None:
    store = ReferenceStore()
    client = client_over(store, tmp_path)
    lease = client.acquire("r", "w1").granted
    assert lease is not None
    for op in ("append", "put_meta", "put_blob"):
        assert client.attempt(op, mutation(lease)).landed
    look = client.look(lease)
    assert look is not None
    assert [borne for borne, _ in look.journal] == ["1.1.2"]
    assert look.row is not None
    assert look.row[0] == "1.1.3"
    assert look.blobs["turn"][0] == "1.1.4"
    history = read_history(tmp_path)
    offered = {str(each.id): each.content for each in history.attempts}
    assert dict([*look.journal, look.row, look.blobs["turn"]]).items() <= offered.items()


def test_bytes_that_nobody_marked_bear_nothing() -> None:
    assert stored(b"{}")[0] == ""
    store = ReferenceStore()
    look = look_at(Stores(store, store.transcripts()), "none", blobs=True)
    assert (look.journal, look.row, look.blobs, look.tail) == ((), None, {}, -1)


def test_the_same_function_reads_all_three(tmp_path: Path) -> None:
    attempt = Recorder(tmp_path, 3, 2).next_id()
    made = (
        record_of(attempt, 5, 1, 1).payload,
        encoded(row_of("r", attempt, 1, 1)),
        blob_of(attempt, 1, 1, 5_000),
    )
    assert [stored(data)[0] for data in made] == ["3.2.1"] * 3
    assert len(made[2]) == 5_000


# --- the desk -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (StoreBusyError("busy"), "nothing", "busy"),
        (StoreFullError("full"), "nothing", "full"),
        (JournalOrderViolation(run_id="r", seq=0, tail_seq=9), "nothing", "order"),
        (OutcomeUnknownError("who knows"), "unknown", ""),
    ],
)
def test_an_answer_is_sorted_into_what_is_known(
    tmp_path: Path, error: Exception, outcome: str, reason: str
) -> None:
    class Failing(ReferenceStore):
        def renew(self, lease: Lease, /) -> None:
            super().renew(lease)
            raise error

    client = client_over(Failing(), tmp_path)
    lease = client.acquire("r", "w1").granted
    assert lease is not None
    answer = client.attempt("renew", mutation(lease))
    assert (answer.outcome, answer.reason) == (outcome, reason)
    assert read_history(tmp_path).attempts[-1].outcome == outcome


def test_any_other_error_goes_up_and_the_attempt_stays_open(tmp_path: Path) -> None:
    class Corrupt(ReferenceStore):
        def renew(self, lease: Lease, /) -> None:
            message = "in pieces"
            raise StoreCorruptError(message, run_id=lease.run_id)

    client = client_over(Corrupt(), tmp_path)
    lease = client.acquire("r", "w1").granted
    assert lease is not None
    with pytest.raises(StoreCorruptError):
        client.attempt("renew", mutation(lease))
    last = read_history(tmp_path).attempts[-1]
    assert (last.op, last.outcome, last.returned_at) == ("renew", "unknown", None)


def test_a_look_counts_only_while_nobody_was_granted_the_run_after(tmp_path: Path) -> None:
    store = ReferenceStore()
    client = client_over(store, tmp_path)
    lease = client.acquire("r", "w1").granted
    assert lease is not None
    store.seize("r", "operator-2")
    assert client.look(lease) is None
    assert not read_history(tmp_path).seen


def test_a_look_that_nobody_can_vouch_for_is_none_and_the_lease_must_not_be_used(
    tmp_path: Path,
) -> None:
    class Plain:
        """No view of the leases: only a renewal shows that one is held."""

        def __init__(self) -> None:
            self.inner = inner = ReferenceStore()
            self.load, self.list_runs, self.put_meta = (
                inner.load,
                inner.list_runs,
                inner.put_meta,
            )
            self.append, self.delete = inner.append, inner.delete
            self.acquire, self.release = inner.acquire, inner.release
            self.renewals: list[Exception] = [StoreBusyError("busy")] * 2

        def renew(self, lease: Lease, /) -> None:
            if self.renewals:
                raise self.renewals.pop()
            self.inner.renew(lease)

    store = Plain()
    client = RecordingClient(
        Stores(store, store.inner.transcripts()), Recorder(tmp_path, 1, 1), blobs=True
    )
    lease = client.acquire("r", "w1").granted
    assert lease is not None
    assert client.look(lease) is not None
    store.renewals = [StoreBusyError("busy")] * 9
    with pytest.raises(StoreBusyError):
        client.look(lease)
    store.renewals = []
    store.inner.seize("r", "operator-2")
    assert client.look(lease) is None
    assert len(read_history(tmp_path).seen) == 1


# --- tenures and what the next life inherits --------------------------------------------------


def test_only_a_lease_that_has_certainly_run_out_is_said_to_have_died() -> None:
    lease = Lease(run_id="r", owner="w", epoch=1)
    tenure = Tenure(lease, side=False, renewed_at=100)
    for began, ended in (
        (90, 200),  # renewed after the stop had begun
        (110, 149),  # not for long enough
        (151, 200),  # it had run out before
    ):
        tenure.mark_if_run_out("stopped", 50, began, ended)
        assert tenure.death == ""
    tenure.mark_if_run_out("stopped", 50, 110, 150)
    tenure.mark_if_run_out("stalled", 50, 110, 999)
    assert tenure.death == "stopped"


def test_what_was_known_to_be_dead_did_not_die_of_a_later_stop() -> None:
    tenure = Tenure(Lease(run_id="r", owner="w", epoch=1), side=False, renewed_at=100)
    tenure.retired_at = 105
    tenure.mark_if_run_out("stopped", 50, 110, 999)
    assert tenure.death == ""
    tenure.retired_at = 120  # learned when it was over
    tenure.mark_if_run_out("stopped", 50, 110, 999)
    assert tenure.death == "stopped"


def test_the_next_life_has_the_leases_whose_end_nobody_knew(tmp_path: Path) -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock, lease_ttl_ms=1_000)
    recorder = Recorder(tmp_path, 1, 1)
    client = RecordingClient(Stores(store, store.transcripts()), recorder, blobs=True)
    kept, given_back, lost, unseen = (
        client.acquire(run_id, "w1").granted for run_id in ("kept", "back", "lost", "unseen")
    )
    assert kept is not None
    assert given_back is not None
    assert lost is not None
    assert unseen is not None
    client.look(kept)
    client.attempt("release", mutation(given_back))
    store.seize("lost", "operator-2")
    client.attempt("append", mutation(lost))
    ending = client.acquire("ending", "w1").granted
    assert ending is not None
    recorder.invoked(recorder.next_id(), "release", "ending", lease=ending)
    with (tmp_path / "report-001-0001.jsonl").open("ab") as file:
        file.write(b'{"returned":"1.1.9')  # cut off by the death
    found = inherit(tmp_path, 1, 1)
    assert [(each.lease, each.looked) for each in found] == [(kept, True), (unseen, False)]
    assert inherit(tmp_path, 1, 2) == []


# --- local fault -----------------------------------------------------------------------------


def test_a_clock_that_was_wrong_is_set_right_and_reported(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1, 1)
    clock = WrongClock(recorder, 1, CI.choices(1))
    try:
        clock.turn(1)
        assert abs(offset_ms()) >= 500
        assert clock.ahead == (offset_ms() > 0)
        assert clock.turn_back()
        assert offset_ms() == 0
    finally:
        set_offset(0)
    (fault,) = read_history(tmp_path).faults
    assert (fault.kind, fault.process) == ("clock", 1)


@POSIX
def test_a_blocked_process_runs_no_other_thread() -> None:
    ticks: list[float] = []
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    began, until = block(0.15)
    ended.set()
    thread.join()
    during = [at for at in ticks if began / 1e9 + 0.02 < at < until / 1e9 - 0.02]
    assert until - began >= 150_000_000
    assert during == []


_TRAPPED = """
import sys, time
from pathlib import Path
from rulvar.conformance.soak.local_faults import SelfStop
trap = SelfStop(Path(sys.argv[1]), 7)
trap.start()
print(trap.during("append", 0.5, lambda: time.sleep(30) or "gone on"), flush=True)
"""


_ORPHANED = """
import os, sys, time
from pathlib import Path
from rulvar.conformance.soak.local_faults import SelfStop
ready, tell = os.pipe()
parent = os.getpid()
if os.fork():
    os.read(ready, 1)
    os._exit(0)
trap = SelfStop(Path(sys.argv[1]), 7)
os.write(tell, b".")
while os.getppid() == parent:
    time.sleep(0.001)
trap.start()
print(trap.during("append", 0.0, lambda: time.sleep(0.5) or "gone on"), flush=True)
"""


@pytest.mark.slow
@POSIX
def test_a_trap_stops_nobody_when_the_one_who_would_thaw_it_is_gone(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _ORPHANED, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "gone on\n"
    assert not StopNotice(tmp_path, 7).heard()


@pytest.mark.slow
@POSIX
def test_a_trap_stops_the_whole_process_inside_the_call_and_leaves_word(tmp_path: Path) -> None:
    notice = StopNotice(tmp_path, 7)
    assert not notice.heard()
    program = [sys.executable, "-c", _TRAPPED, str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as process:
        try:
            # Ends when the process has stopped, not when it has ended.
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert os.WSTOPSIG(status) == signal.SIGSTOP
            assert notice.heard()
            assert not notice.heard()
        finally:
            process.kill()
