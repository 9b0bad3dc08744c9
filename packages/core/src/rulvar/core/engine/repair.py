"""Rewriting a row from its journal: through the writer, under one brief lease per run.

Nothing of a run's body is executed and no workflow is needed. A brief lease taken while an
owner sleeps ends that owner, as any brief lease does. Called from plain threads.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

from rulvar.core.engine.admin.callers import confirmed
from rulvar.core.engine.admin.run_admin import with_short_lease
from rulvar.core.engine.engine import Engine
from rulvar.core.engine.lease.ownership import NoLease
from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal import read_journal, run_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from rulvar.core.clock import Clock
    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.ids import IdSource
    from rulvar.core.records import JournalRecord, RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["Decide", "RowRewriter"]

Decide: TypeAlias = "Callable[[RunMeta | None, Sequence[JournalRecord]], RunMeta | None]"
"""Given row and journal as they are under the lease, the row to write, or None for none."""


class RowRewriter:
    """Rewrites rows of runs without a holder, each under its lease.

    Over a store without leases it writes without one, as every single writer does.
    ``lease_ttl`` is for a leasable store that does not say how long its leases live.
    Raises `ConfigError` for a pair that cannot be worked on.
    """

    def __init__(
        self,
        stores: StorePair,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        lease_ttl: Duration | None = None,
    ) -> None:
        self._engine = Engine(
            stores,
            owner=f"rulvar-repair:{socket.gethostname()[:80]}:{os.getpid()}",
            clock=clock,
            ids=ids,
            lease_ttl=lease_ttl,
        )

    def rewrite(self, run_id: str, decide: Decide) -> int | None:
        """Write the row that ``decide`` returns, and return the epoch it was written under.

        ``decide`` is asked under the lease, and again when the lease had to be taken again.
        None means that there was no lease, or nothing to write. Raises `LeaseHeldError`
        (``held``) while the run is held, `SupersededError` when it is lost meanwhile,
        `SegmentEnded` from inside a segment that has ended, and what the store raises.
        """
        runtime = self._engine.runtime
        take = partial(runtime.take, run_id) if runtime.owns else partial(NoLease, run_id)
        return with_short_lease(runtime, confirmed(runtime, take), partial(_rewrite, decide=decide))

    def close(self) -> None:
        """Stop renewing; idempotent. The stores stay open."""
        runtime = self._engine.runtime
        runtime.renewer.close()
        runtime.bridge.close()
        runtime.step_threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _rewrite(_runtime: Runtime, writer: RunWriter, *, decide: Decide) -> int | None:
    row, records = writer.read(partial(_genesis, writer.run_id))
    wanted = decide(row, records)
    if wanted is None:
        return None
    writer.put_meta(wanted)
    return writer.epoch


def _genesis(run_id: str, records: Sequence[JournalRecord]) -> str | None:
    try:
        start = run_start(read_journal(run_id, records))
    except StoreCorruptError:
        return None  # ``decide`` sees the same records, and writes nothing over them
    return None if start is None else start.genesis
