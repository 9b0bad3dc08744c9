"""A worker: acquires unfinished runs that have no holder, and continues them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rulvar.core.checks import MAX_INTEGER, check_integer
from rulvar.core.engine.admin.sweep import Sweeper, choose
from rulvar.core.engine.code.calling import UserCode
from rulvar.core.engine.kernel.durations import positive_seconds_of, seconds_of
from rulvar.core.errors import (
    LeaseHeldError,
    OutcomeUnknownError,
    RulvarError,
    SettlementError,
    StoreBusyError,
    StoreCorruptError,
    StoreFullError,
    SupersededError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.admin.retention import RetentionPolicy
    from rulvar.core.engine.engine import Engine
    from rulvar.core.engine.handle import RunHandle
    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.engine.kernel.outcome import RunOutcome

__all__ = ["Worker", "WorkerReport", "WorkerResult"]

_log = logging.getLogger("rulvar.worker")

_REST_MS = 30_000
"""How long a run rests after an error of the disk, which may pass without its row changing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What became of one segment that a worker ran: an outcome, or the error it raised."""

    run_id: str
    outcome: RunOutcome | None = None
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class WorkerReport:
    """What a worker did, counted.

    ``outcomes`` counts segments by the status they ended with (``running``: let go when the
    worker stopped); ``held`` runs that another owner took first; ``superseded`` segments
    that lost their run; ``retained`` the runs that retention has deleted; ``broken`` the runs
    that were set aside, with their errors; ``blocked`` those that wait for another code, with
    what this one cannot replay.
    """

    sweeps: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    held: int = 0
    superseded: int = 0
    busy: int = 0
    retained: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)


class Worker:
    """Sweeps running and suspended runs, acquires, resumes, renews and releases.

    ``concurrency`` is how many runs it has at a time, ``poll_interval`` how long it waits
    between two sweeps that found nothing; ``on_result`` is told about every segment.
    ``retention`` is applied at the start and then every ``retention_interval``; both are
    in seconds or a `timedelta`. A
    broken run is set aside until its row changes. It takes runs of the workflows and versions
    that its engine has, except those that this very code cannot replay. A run that may be what
    kills its processes is executed last and alone. Raises `ConfigError` for numbers that cannot
    work.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        concurrency: int = 4,
        poll_interval: Duration = 0.5,
        retention: RetentionPolicy | None = None,
        retention_interval: Duration = 60,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> None:
        check_integer("concurrency", concurrency, 1, MAX_INTEGER)
        self._engine = engine
        self._concurrency = concurrency
        self._held_ms = (engine.runtime.lease_ttl_ms or 0) // 3
        self._poll_seconds = positive_seconds_of("poll_interval", poll_interval)
        self._retention = retention
        self._retention_seconds = positive_seconds_of("retention_interval", retention_interval)
        self._retained_at = -math.inf
        self._on_result = on_result
        runtime = engine.runtime
        self._sweeper = Sweeper(
            runtime.reads, runtime.clock, engine.workflows, runtime.code, runtime.lease_ttl_ms or 0
        )
        self._alone: str | None = None
        self._running: dict[asyncio.Task[None], RunHandle] = {}
        self._report = WorkerReport()
        self._stop = asyncio.Event()
        self._grace_seconds = 10.0

    def stop(self, *, grace: Duration = 10) -> None:
        """Ask the worker to end; call it on the worker's loop (``loop.add_signal_handler``).

        No further run is taken. Steps under way have ``grace``, in seconds or a `timedelta`,
        to end and be journalled; then every run is let go and its lease given back, so that
        another worker can go on at once.
        """
        self._grace_seconds = seconds_of("grace", grace)
        self._stop.set()

    async def run(self, *, until_idle: bool = False) -> WorkerReport:
        """Work until `stop`, or with ``until_idle`` until nothing is left to do now.

        Cancelling the task lets every run go, too. Raises store errors of a sweep, except
        busy ones, and `StoreForkedError` in a forked child.
        """
        self._engine.runtime.bridge.refuse_child()
        try:
            while not self._stop.is_set():
                await self._retain()
                found = await self._sweep()
                if until_idle and not found and not self._running:
                    break
                await self._wait(found)
        finally:
            await self._wind_up()
        return self._report

    async def _sweep(self) -> int:
        free = self._concurrency - len(self._running)
        if free <= 0:
            return 0
        busy = {handle.run_id for handle in self._running.values()}
        runtime = self._engine.runtime
        try:
            if await self._is_alone():
                return 0
            found = await runtime.bridge.call(partial(self._sweeper.candidates, busy))
        except StoreBusyError as error:
            self._report.busy += 1
            _log.warning("the sweep found the store busy: %s", error)
            return 0
        self._report.sweeps += 1
        chosen = choose(
            found, executing=len(self._running), free=free, now_ms=runtime.clock.now_ms()
        )
        begun = 0
        for each in chosen:
            try:
                handle = self._engine.start_resume(each.run_id, before=each.lease)
            except LeaseHeldError:
                self._report.held += 1  # live in this very engine, started by the host
                continue
            begun += 1
            self._alone = each.run_id if each.suspected else None
            task = asyncio.create_task(self._attend(handle))
            self._running[task] = handle
            task.add_done_callback(self._running.pop)
        return begun

    async def _is_alone(self) -> bool:
        """Whether the run under way is to have this worker for itself, as its row still says."""
        if self._alone is None or not any(
            handle.run_id == self._alone for handle in self._running.values()
        ):
            self._alone = None
            return False
        bridge = self._engine.runtime.bridge
        if not await bridge.call(partial(self._sweeper.is_suspected, self._alone)):
            self._alone = None  # it has got something done
        return self._alone is not None

    async def _retain(self) -> None:
        """Apply the retention policy, now and then; what goes wrong is reported and kept."""
        now = time.monotonic()
        if self._retention is None or now - self._retained_at < self._retention_seconds:
            return
        self._retained_at = now
        try:
            report = await self._engine.apply_retention(self._retention)
        except StoreBusyError as error:
            self._report.busy += 1
            _log.warning("retention found the store busy: %s", error)
            return
        self._report.retained += len(report.deleted)
        for run_id, reason in report.kept.items():
            _log.info("retention kept run %r: %s", run_id, reason)
        for run_id, reason in report.failed.items():
            _log.warning("retention could not delete run %r: %s", run_id, reason)

    async def _wait(self, found: int) -> None:
        """Wait for a run to end, for the next sweep to be due, or for the stop."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            timeout = 0 if found and len(self._running) < self._concurrency else self._poll_seconds
            await asyncio.wait(
                {stopped, *self._running}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopped.cancel()

    async def _attend(self, handle: RunHandle) -> None:
        report = self._report
        result: WorkerResult
        try:
            outcome = await handle.result()
        except LeaseHeldError as error:
            report.held += 1
            # A store that does not list its leases offers it again at every sweep.
            self._sweeper.rest(handle.run_id, self._held_ms)
            result = WorkerResult(run_id=handle.run_id, error=error)
        except SupersededError as error:
            report.superseded += 1
            result = WorkerResult(run_id=handle.run_id, error=error)
        except StoreBusyError as error:
            report.busy += 1
            result = WorkerResult(run_id=handle.run_id, error=error)
        except (StoreFullError, OutcomeUnknownError, SettlementError) as error:
            _log.error("run %r is left alone for %d s: %s", handle.run_id, _REST_MS // 1000, error)
            report.broken[handle.run_id] = f"{type(error).__name__}: {error}"
            self._sweeper.rest(handle.run_id, _REST_MS)
            result = WorkerResult(run_id=handle.run_id, error=error)
        except Exception as error:  # noqa: BLE001 - one broken run must not end the worker
            result = WorkerResult(run_id=handle.run_id, error=error)
            await self._set_aside(handle.run_id, error)
        else:
            report.outcomes[outcome.status] = report.outcomes.get(outcome.status, 0) + 1
            result = WorkerResult(run_id=handle.run_id, outcome=outcome)
        self._emit(result)

    async def _set_aside(self, run_id: str, error: Exception) -> None:
        try:
            blocked = await self._engine.runtime.bridge.call(
                partial(self._sweeper.why_blocked, run_id)
            )
        except RulvarError:
            blocked = None
        if blocked is not None:
            self._report.blocked[run_id] = blocked
            _log.warning(
                "run %r is blocked: %s: %s; no worker of this code takes it before that",
                run_id,
                blocked,
                "repair its journal and resume it"
                if isinstance(error, StoreCorruptError)
                else "it waits for another code, deploy one that replays it",
            )
            return
        self._report.broken[run_id] = f"{type(error).__name__}: {error}"
        expected = isinstance(error, RulvarError)
        _log.error("run %r is set aside: %s", run_id, error, exc_info=None if expected else error)
        try:
            await self._engine.runtime.bridge.call(partial(self._sweeper.note_broken, run_id))
        except RulvarError as failed:
            _log.warning("run %r could not be set aside: %s", run_id, failed)

    def _emit(self, result: WorkerResult) -> None:
        if self._on_result is None:
            return
        try:
            with UserCode(lambda: False):
                self._on_result(result)
        except Exception:  # noqa: BLE001 - logged: it never hurts a run
            _log.exception("on_result raised for run %r", result.run_id)

    async def _wind_up(self) -> None:
        for handle in self._running.values():
            handle.drain()
        if self._running:
            await asyncio.wait(set(self._running), timeout=self._grace_seconds)
        for handle in self._running.values():
            handle.detach()
        if self._running:
            await asyncio.wait(set(self._running))
