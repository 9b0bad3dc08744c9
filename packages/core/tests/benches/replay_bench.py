"""What tests of replays play with: one run, executed by one body and then by another."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from rulvar.core.engine import Engine, workflow
from rulvar.core.journal import read_journal
from rulvar.core.stores import Stores
from rulvar.core.testing import ManualClock, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rulvar.core.clock import Clock
    from rulvar.core.engine import Context, RunOutcome
    from rulvar.core.journal import JournalEntry
    from rulvar.core.records import RunMeta
    from rulvar.core.stores import StorePair

__all__ = ["ReplayBench"]

Body = "Callable[[Context], Awaitable[object]]"


class ReplayBench:
    """A store with the run ``r``; ``ran`` counts what its steps really did."""

    def __init__(self, *, clock: Clock | None = None, **options: object) -> None:
        self.clock = clock or ManualClock()
        self.store = ReferenceStore(clock=self.clock)
        self.ran: Counter[str] = Counter()
        self.options = options

    def pay(self, what: str) -> str:
        """Do what costs money: a step's function."""
        self.ran[what] += 1
        return what

    async def pay_later(self, what: str) -> str:
        """Do it, async."""
        return self.pay(what)

    def stores(self) -> StorePair:
        return Stores(self.store, self.store.transcripts())

    def life(
        self,
        body: Callable[[Context], Awaitable[object]],
        *,
        retry: bool = False,
        stores: StorePair | None = None,
        before: Callable[[Engine], Awaitable[object]] | None = None,
    ) -> RunOutcome:
        """Execute one segment of the run by a body, on an engine and a loop made for it."""
        named = workflow(name="w")(body)

        async def main() -> RunOutcome:
            pair = stores or self.stores()
            async with Engine(pair, [named], clock=self.clock, **self.options) as engine:  # type: ignore[arg-type] # options by name
                if before is not None:
                    await before(engine)
                if self.store.get_meta("r") is None:
                    return await engine.run(named, run_id="r")
                return await (engine.retry("r") if retry else engine.resume("r"))

        return asyncio.run(main())

    def entries(self) -> list[JournalEntry]:
        return read_journal("r", self.store.load("r"))

    def calls(self) -> list[tuple[str, str, bool]]:
        """Return (kind, name, whether it ends a call) of the entries that belong to calls."""
        return [(e.kind, e.key, e.ref is not None) for e in self.entries() if e.key]

    @property
    def row(self) -> RunMeta:
        row = self.store.get_meta("r")
        assert row is not None
        return row

    def crash(self) -> None:
        """Take the settle away, and the lease with time: the process died before it settled."""
        kept = self.store.load("r")
        while b"run_settle" in kept[-1].payload:
            kept = kept[:-1]
        self.keep(len(kept))

    def keep(self, count: int) -> None:
        """Keep the first records of the journal alone, in a store of the same clock."""
        records, row = self.store.load("r")[:count], self.row
        self.store = ReferenceStore(clock=self.clock)
        self.store.put_meta(replace(row, status="running", wake_at=None, stopped=row.segments))
        for record in records:
            self.store.append("r", record)
