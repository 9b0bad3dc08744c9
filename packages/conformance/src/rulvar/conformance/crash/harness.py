"""What a workload works with in one process: its stores, its notes, its clock, its ids."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rulvar.conformance.crash.forked_step import fork_and_try
from rulvar.conformance.harness.machine_clock import offset_ms, set_offset
from rulvar.core.engine import Engine
from rulvar.core.engine.code.workflow import NOT_GIVEN
from rulvar.core.errors import ConfigError, InvalidResolutionError
from rulvar.core.records import TERMINAL_STATUSES

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.conformance.crash.call_log import CallLog
    from rulvar.conformance.harness.store_under_test import Opener
    from rulvar.core.engine import RunOutcome, Workflow
    from rulvar.core.stores import StorePair, Stores

__all__ = ["Harness", "outcome_of"]

_MOST_SEGMENTS = 20
_LONG_ENOUGH_MS = 60_000


class Harness:
    """One process of a workload.

    ``folder`` is the workload's own and outlives its processes; run ids begin with
    ``prefix``, so that a place which others use too is not confused. ``own`` are the stores
    below the watched ones, ``opener`` opens the place once more.
    """

    def __init__(
        self,
        stores: StorePair,
        log: CallLog,
        folder: Path,
        prefix: str,
        *,
        own: Stores,
        opener: Opener,
    ) -> None:
        self.stores = stores
        self._own = own
        self._opener = opener
        self.log = log
        self.folder = folder
        self._prefix = prefix
        self._engine: Engine | None = None

    def run_id(self, name: str) -> str:
        """Return the id of the run that the workload's table calls ``name``."""
        return self._prefix + name

    def engine(self, *workflows: Workflow) -> Engine:
        """Make an engine; the caller closes it."""
        self._engine = Engine(self.stores, workflows, owner="kill-points")
        return self._engine

    def forward(self, ms: int = _LONG_ENOUGH_MS) -> None:
        """Move this process's clock ahead."""
        set_offset(offset_ms() + ms)

    # --- what is paid for -------------------------------------------------------------------

    def do(self, name: str) -> str:
        """Do the work of a step of that name."""
        self.log.ran(f"step:{name}")
        return name.upper()

    def keep(self, name: str, value: object) -> object:
        """Do the work of a step of that name, which returns what it was given."""
        self.do(name)
        return value

    async def do_async(self, name: str) -> str:
        """Do the work of a step of that name, on the loop."""
        return self.do(name)

    def fail(self, name: str) -> None:
        """Do the work of a step of that name, which fails."""
        self.log.ran(f"step:{name}:error")
        message = "as it should"
        raise ValueError(message)

    def fork(self, name: str) -> str:
        """Do the work of a step of that name, which forks the process; return what came of it."""
        self.do(name)
        return fork_and_try(self._own, self._opener, self.run_id("forked"))

    async def cancel(self, run_id: str) -> None:
        """Cancel a run through the engine that was made last, as from inside the run."""
        if self._engine is not None:
            await self._engine.cancel(run_id)

    # --- ways to bring a run to its end -----------------------------------------------------

    async def through(
        self, workflow: Workflow, args: object = NOT_GIVEN, *, name: str = "r"
    ) -> list[object]:
        """Start a run or go on with it; answer it and let time pass until it is over."""
        run_id = self.run_id(name)
        async with self.engine(workflow) as engine:
            outcome = await engine.run(workflow, args, run_id=run_id)
            for _ in range(_MOST_SEGMENTS):
                if outcome.status in TERMINAL_STATUSES:
                    return outcome_of(outcome)
                for waiting in outcome.waiting_for:
                    if waiting.kind == "external" and waiting.deadline_at is None:
                        # Answered before the death already: the first answer counts.
                        with contextlib.suppress(InvalidResolutionError):
                            await engine.resolve(run_id, waiting.key, {"by": "me"})
                self.forward()
                outcome = await engine.resume(run_id)
        message = f"run {run_id!r} is not over after {_MOST_SEGMENTS} segments: {outcome.status}"
        raise ConfigError(message)


def outcome_of(outcome: RunOutcome) -> list[object]:
    """Return what a workload says of an outcome: its status, and its value or failure."""
    failure = None if outcome.error is None else outcome.error.message
    return [outcome.status, outcome.value if failure is None else failure]
