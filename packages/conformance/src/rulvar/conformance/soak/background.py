"""Two processes that take no part in the fight, and make it harder.

One makes long calls: blobs of many MiB, on runs of its own, so that others find the store
busy. One reads all the time, and now and then is stopped in the middle of it.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.soak.client import MutationCall, RecordingClient
from rulvar.conformance.soak.history import Recorder
from rulvar.conformance.soak.orders import OrdersFile
from rulvar.core.errors import OutcomeUnknownError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.soak.history import Operation
    from rulvar.conformance.soak.worker_config import WorkerConfig
    from rulvar.core.records import Lease
    from rulvar.core.stores import Stores

__all__ = ["disturb", "read"]

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
