"""Processes beside the workers: two load the store, and one checks what was reported so far.

One load makes long calls: blobs of many MiB, on a run that the workers leave alone, so that others
find the store busy. The other reads all the time, and now and then is stopped in the middle of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rulvar.conformance.harness.children import Child
from rulvar.conformance.soak.checker import judge
from rulvar.conformance.soak.client import MutationCall, RecordingClient
from rulvar.conformance.soak.history import Recorder, now, read_history
from rulvar.conformance.soak.orders import OrdersFile
from rulvar.core.errors import OutcomeUnknownError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.orders import WorkerConfig
    from rulvar.conformance.soak.results import Violation
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["LiveChecker", "disturb", "read"]

_MIB = 1024 * 1024


def disturb(stores: Stores, tell: Callable[[object], None], config: WorkerConfig) -> None:
    """Make long calls until the end is ordered."""
    del tell
    choices, largest = config.choices(), config.plan.largest_blob
    recorder = Recorder(Path(config.folder), config.process, config.life)
    client = RecordingClient(stores, recorder, blobs=config.matrix.blobs)
    orders = OrdersFile(Path(config.folder))
    count = 0
    while not (now := orders.look()).ending:
        run_id = f"{now.side_runs[0]}-long"
        lease = client.acquire(run_id, f"long-{config.process}").granted
        look = None
        if lease is not None:
            # Not used when nobody can say what is there: it runs out.
            with contextlib.suppress(StoreBusyError):
                look = client.look(lease)
        if lease is not None and look is not None:
            tail = look.tail
            for op in _CALLS[config.matrix.blobs]:
                count, tail = count + 1, tail + 1
                size = choices.randrange(largest // 4, largest)
                client.attempt(op, _mutation(lease, count, tail, size))
        # It makes things harder for the others; alone, it would keep them from everything.
        time.sleep(choices.uniform(0.1, 0.4))
    recorder.close()


_CALLS: dict[bool, tuple[Operation, ...]] = {
    True: ("append", "put_blob", "renew", "release"),
    False: ("append", "append", "renew", "release"),
}


def _mutation(lease: Lease, count: int, seq: int, size: int) -> MutationCall:
    return MutationCall(lease.run_id, lease, "", count, seq, "long", size)


def read(stores: Stores, tell: Callable[[object], None], config: WorkerConfig) -> None:
    """Read everything, over and over, until the end is ordered."""
    del tell
    choices = config.choices()
    recorder = Recorder(Path(config.folder), config.process, config.life)
    orders = OrdersFile(Path(config.folder))
    while not (now := orders.look()).ending:
        # Nothing is known of an outcome that is not final yet: the next read tells.
        with contextlib.suppress(StoreBusyError, OutcomeUnknownError):
            stores.journal.list_runs(None)
            for run_id in (*now.runs, *now.side_runs, f"{now.side_runs[0]}-long"):
                stores.journal.load(run_id)
                if config.matrix.blobs:
                    for ref in stores.transcripts.list_refs(run_id):
                        stores.transcripts.get(ref)
        # So that the processors are not all busy with reading.
        time.sleep(choices.uniform(0.02, 0.2))
    recorder.close()


_EVERY_NS = 1_000_000_000
_SHARE = 6


def judge_so_far(
    stores: object, tell: Callable[[object], None], folder: str
) -> tuple[Violation, ...]:
    """Judge what is there at this moment: what the other process is asked to run."""
    del stores, tell
    instant = now()
    return judge(read_history(Path(folder)).until(instant), ended=False).violations


class LiveChecker:
    """Judges about once a second; less often when it takes long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: Child | None = None
        self._thread: threading.Thread | None = None
        self._found: tuple[Violation, ...] = ()
        self._error: Exception | None = None
        self._began = 0
        self._next = 0

    def turn(self) -> tuple[Violation, ...]:
        """Begin when it is time; return what was found. Raises what the checker raised."""
        if self._thread is not None and self._thread.is_alive():
            return ()
        if self._error is not None:
            raise self._error
        if self._thread is not None:
            self._thread = None
            self._next = now() + max(_EVERY_NS, _SHARE * (now() - self._began))
        elif now() >= self._next:
            self._began = now()
            self._thread = threading.Thread(target=self._ask, name="live_checker", daemon=True)
            self._thread.start()
        return self._found

    def _ask(self) -> None:
        try:
            if self._child is None:
                self._child = Child()
            found = self._child.run(judge_so_far, str(self._folder))
            self._found = cast("tuple[Violation, ...]", found)
        except Exception as error:  # noqa: BLE001 - raised at the next turn
            self._error = error

    def end(self) -> None:
        """End the process; what it was about to find, the checker finds at the end."""
        if self._child is not None:
            self._child.end()
        if self._thread is not None:
            self._thread.join(10)
