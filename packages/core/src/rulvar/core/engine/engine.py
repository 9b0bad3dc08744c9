"""The engine: what an application holds to run, resume and end its workflows."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from rulvar.core.checks import (
    MAX_INTEGER,
    check_build,
    check_call_name,
    check_integer,
    check_lease,
    check_meta,
    check_run_id,
)
from rulvar.core.clock import SystemClock
from rulvar.core.engine.admin import callers, run_admin
from rulvar.core.engine.admin.retention import apply_retention, prune, prune_inside
from rulvar.core.engine.child_runs import ChildRuns
from rulvar.core.engine.code.registry import Registry
from rulvar.core.engine.code.workflow import NOT_GIVEN, check_limit_of_run
from rulvar.core.engine.handle import RunHandle
from rulvar.core.engine.io.bridge import Bridge, call_once, on_loop
from rulvar.core.engine.io.event_bus import EventBus
from rulvar.core.engine.io.mutations import FencedCalls, LeaseApi
from rulvar.core.engine.io.reads import Reads
from rulvar.core.engine.kernel.durations import milliseconds_of
from rulvar.core.engine.lease.ownership import ExternalLease
from rulvar.core.engine.lease.renewer import LeaseRenewer
from rulvar.core.engine.segment import requests
from rulvar.core.engine.segment.begin import Resume, StartNew
from rulvar.core.engine.segment.runtime import Runtime
from rulvar.core.engine.settings import (
    choice,
    decide_ownership,
    observers_of,
    readable_owner,
    silence_of,
    ttl_of,
)
from rulvar.core.errors import ConfigError, LeaseHeldError
from rulvar.core.ids import SystemIds
from rulvar.core.records import RunMeta
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from rulvar.core.clock import Clock
    from rulvar.core.engine.admin.retention import PruneReport, RetentionPolicy, RetentionReport
    from rulvar.core.engine.code.workflow import Given, Workflow
    from rulvar.core.engine.io.event_bus import EventStream
    from rulvar.core.engine.kernel.durations import Duration
    from rulvar.core.engine.kernel.outcome import RunOutcome
    from rulvar.core.engine.lease.ownership import Ownership
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.events import Event
    from rulvar.core.ids import IdSource
    from rulvar.core.records import Lease, LeaseInfo
    from rulvar.core.stores import StorePair

__all__ = ["Engine"]

T = TypeVar("T")

_GIT_THREADS = 8


class Engine:
    """Runs workflows over a pair of stores (contract.md#the-engine).

    ``workflows`` are what `resume` and a worker can continue. ``owner`` is the readable
    part of this engine's owner strings, to which the process and a token are added.

    ``ownership="lease"`` (the default): over a leasable store every segment acquires first.
    ``ownership="none"`` is a host's decision to write without a lease; ``require_lease=True``
    forbids that, and forbids stores without leases. ``lease_ttl`` (seconds or a
    `timedelta`) is for a leasable store that does not say how long its leases live.
    ``blocked_loop_limit`` is for how many seconds an event loop may fail to answer before the
    leases of its runs are given up (default: ten times to live).

    ``on_source_change`` says what to do when a run is resumed whose workflow's source has
    changed since it began: ``"warn"`` in the log, or ``"refuse"`` with `ConfigError`;
    ``on_changed_args`` the same of a call with arguments that no call of its name had: it is
    told, or blocks the run.
    ``build`` names the code that this process runs: a run that it cannot replay waits for
    another one. By default it is a hash of the sources of the package that defines the workflow.

    ``suspend_after`` is how near a deadline must be for a waiting segment to wait for it instead
    of suspending. ``store_threads`` bounds the store calls under way at once,
    ``step_threads`` the plain step functions. ``clock`` and ``ids`` are where time and
    chance come from.

    ``observer`` is called with what happens, soon after and in a separate thread, one event
    at a time; ``observers`` are plugins with the hook ``rulvar_observe``, which do the same.
    One that raises is logged, one that is too slow loses events, and none reaches a run.

    The engine does not close the stores, and refuses a forked child. Raises `ConfigError` for
    what cannot work, before I/O.
    """

    def __init__(
        self,
        stores: StorePair,
        workflows: Iterable[Workflow] = (),
        *,
        owner: str | None = None,
        ownership: Literal["lease", "none"] = "lease",
        require_lease: bool = False,
        lease_ttl: Duration | None = None,
        on_source_change: Literal["warn", "refuse"] = "warn",
        on_changed_args: Literal["warn", "refuse"] = "warn",
        build: str | None = None,
        blocked_loop_limit: float | None = None,
        suspend_after: Duration = 1,
        store_threads: int = 64,
        step_threads: int = 64,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        observer: Callable[[Event], None] | None = None,
        observers: Iterable[object] = (),
    ) -> None:
        ids = SystemIds() if ids is None else ids
        clock = SystemClock() if clock is None else clock
        owns = decide_ownership(stores, ownership, require_lease=require_lease)
        self._registry = Registry(workflows)
        self._require_lease = require_lease
        self._live: dict[str, RunHandle] = {}
        self._starting = threading.Lock()
        self._closed = False
        children = ChildRuns(
            self._registry,
            lambda run_id, request: self._launch_owned(
                run_id, request, lambda: self._runtime.own(run_id)
            ),
            lambda run_id, act: self._with_short_lease(run_id, None, act),
        )
        self._runtime = Runtime(
            mutations=FencedCalls(stores),
            reads=Reads(stores),
            leases=LeaseApi(stores),
            bridge=Bridge(threads=store_threads, name="rulvar-store"),
            step_threads=Bridge(threads=step_threads, name="rulvar-step"),
            git_threads=Bridge(threads=_GIT_THREADS, name="rulvar-git"),
            renewer=LeaseRenewer(silence_limit=silence_of(blocked_loop_limit)),
            clock=clock,
            ids=ids,
            owner=readable_owner(owner),
            owns=owns,
            lease_ttl_ms=ttl_of(stores, lease_ttl) if owns else None,
            suspend_after_ms=milliseconds_of("suspend_after", suspend_after),
            workflows=self._registry.by_name,
            bus=EventBus(clock, observers_of(observer, observers)),
            launch=children.launch,
            cancel_child=children.cancel,
            on_changed_args=choice("on_changed_args", on_changed_args, ("warn", "refuse")),
            on_source_change=choice("on_source_change", on_source_change, ("warn", "refuse")),
            build=None if build is None else check_build(build),
        )

    # --- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let every live run go, wait for their leases to be given back; idempotent.

        The runs stay and can be resumed at once. Raises `StoreForkedError` in a forked child.
        """
        self._runtime.bridge.refuse_child()
        self._closed = True
        handles = list(self._live.values())
        for handle in handles:
            handle.detach()
        for handle in handles:
            await handle.wait()
        self._runtime.renewer.close()
        self._runtime.bus.close()
        for threads in (
            self._runtime.bridge,
            self._runtime.step_threads,
            self._runtime.git_threads,
        ):
            threads.close()
        await call_once(self._runtime.bus.join)

    @property
    def workflows(self) -> Mapping[str, Workflow]:
        """The workflows that this engine can resume, by name."""
        return self._runtime.workflows

    @property
    def runtime(self) -> Runtime:
        """The machinery, for the worker; not for applications."""
        return self._runtime

    @property
    def owner(self) -> str:
        """The readable part of this engine's owner strings."""
        return self._runtime.owner

    def events(self, *, buffer: int = 10_000) -> EventStream:
        """Return what happens to this engine's runs from now on; it ends with the engine.

        A reader that is more than ``buffer`` events behind loses the oldest, and gets an
        event of kind ``lagged`` in their place. Raises `ConfigError` for a bad ``buffer``.
        """
        return self._runtime.bus.stream(None, buffer=buffer)

    # --- runs -------------------------------------------------------------------------------

    async def run(
        self,
        workflow: Workflow | str,
        args: object = NOT_GIVEN,
        *,
        run_id: str | None = None,
        name: str | None = None,
        tags: tuple[str, ...] = (),
        max_recoveries: Given[int | None] = NOT_GIVEN,
        deadline: Duration | None = None,
        lease: Lease | None = None,
    ) -> RunOutcome:
        """Start a run, or resume the same one, and return how the segment ended.

        ``max_recoveries`` is the workflow's unless it is given here, for this run alone.
        ``deadline`` is how long the run may take from its begin, in seconds or a `timedelta`,
        waiting included: then it ends as ``error`` and its children are cancelled. When
        the awaiting task is cancelled the run is let go, not cancelled: it can be resumed.

        Raises `ConfigError` for bad arguments or another run under the same id;
        `LeaseHeldError` (``held``) while it is held; `SupersededError`,
        `SettlementError` and store errors when the segment could not give an outcome.
        """
        await callers.confirmed_caller(self._runtime)
        handle = self.start(
            workflow,
            args,
            run_id=run_id,
            name=name,
            tags=tags,
            max_recoveries=max_recoveries,
            deadline=deadline,
            lease=lease,
        )
        return await handle.result_or_detach()

    def start(
        self,
        workflow: Workflow | str,
        args: object = NOT_GIVEN,
        *,
        run_id: str | None = None,
        name: str | None = None,
        tags: tuple[str, ...] = (),
        max_recoveries: Given[int | None] = NOT_GIVEN,
        deadline: Duration | None = None,
        lease: Lease | None = None,
    ) -> RunHandle:
        """Start a run in the background of the running loop; return its handle.

        Arguments as in `run`. Raises `ConfigError` at once, before any I/O, and
        `LeaseHeldError` when the run is live in this very engine.
        """
        chosen = self._registry.find(workflow)
        provided = args is not NOT_GIVEN
        chosen.check_args(provided=provided)
        value = normalize(args, path="$.args") if provided else None
        run_id = check_run_id(self._runtime.ids.token() if run_id is None else run_id)
        check_meta(RunMeta(run_id=run_id, status="running", updated_at="-", name=name, tags=tags))
        request = StartNew(
            workflow=chosen,
            args_provided=provided,
            args=value,
            name=name,
            tags=tags,
            max_recoveries=check_limit_of_run(max_recoveries),
            deadline_ms=None if deadline is None else milliseconds_of("deadline", deadline),
        )
        return self._launch(run_id, request, lease)

    async def resume(self, run_id: str, *, lease: Lease | None = None) -> RunOutcome:
        """Go on with a run; a terminal one returns its outcome and executes nothing.

        ``lease`` is the caller's own: it is neither renewed nor released here. Raises as
        `run` does, `NonDeterminismError` when the present code cannot replay the journal (the
        run is blocked for it, and another code goes on), and `JournalCompatibilityError` for
        a journal of another generation.
        """
        await callers.confirmed_caller(self._runtime)
        return await self.start_resume(run_id, lease=lease).result_or_detach()

    def start_resume(
        self, run_id: str, *, lease: Lease | None = None, before: LeaseInfo | None = None
    ) -> RunHandle:
        """Go on with a run in the background of the running loop; return its handle.

        ``before`` is the dead lease that the caller has seen on the run: it tells whose it was.
        """
        return self._launch(check_run_id(run_id), Resume(), lease, before)

    async def retry(self, run_id: str, *, lease: Lease | None = None) -> RunOutcome:
        """Go on with a run that ended as ``error`` or ``exhausted``, making its error again.

        The call whose error ended the run is made again, and so is what the body did because
        of that error (a compensation, for one); whatever else completed is never paid again.
        A child that failed goes on under its own run id by the same rule. A run that did not
        fail is resumed. Raises as `resume`.
        """
        await callers.confirmed_caller(self._runtime)
        return await self.start_retry(run_id, lease=lease).result_or_detach()

    def start_retry(self, run_id: str, *, lease: Lease | None = None) -> RunHandle:
        """Retry a run in the background of the running loop."""
        return self._launch(check_run_id(run_id), Resume(retry=True), lease)

    async def cancel(self, run_id: str) -> RunOutcome | None:
        """End a run as ``cancelled``; return its outcome, or the one that it has already.

        From inside the run itself it returns None and the segment ends. Raises
        `LeaseHeldError` (``held``) while another process has the run: wait, or take over.
        """
        check_run_id(run_id)
        caller = await callers.confirmed_caller_of(self._runtime, run_id)
        if caller is not None:
            await on_loop(caller.loop, requests.cancel(caller))
            return None
        live = self._live.get(run_id)
        if live is not None:
            return await live.cancel()
        return await self._with_short_lease(run_id, None, run_admin.cancel)

    async def resolve(
        self, run_id: str, key: str, value: object = None, *, seq: int | None = None
    ) -> None:
        """Answer what a run waits for under ``key``; the first valid answer counts.

        It answers the earliest wait of that key that is open. ``seq`` names one wait, by the
        number that `Suspension.seq` has: then the same answer, given twice, never answers a
        later wait of the same key.

        Raises `NotAskedError` (retryable) when the run does not wait for it yet,
        `AlreadyAnsweredError` when the first answer is there, `InvalidResolutionError` for a
        value that does not fit the schema and for a run that has ended, `ConfigError` for a
        value that cannot cross the journal, and `LeaseHeldError` (``held``) while another
        process has the run.
        """
        check_run_id(run_id)
        check_call_name(key)
        if seq is not None:
            check_integer("seq", seq, 0, MAX_INTEGER)
        value = normalize(value)
        caller = await callers.confirmed_caller_of(self._runtime, run_id)
        if caller is not None:
            await on_loop(caller.loop, requests.resolve(caller, key, value, seq))
            return
        live = self._live.get(run_id)
        if live is not None and await live.resolve_live(key, value, seq):
            return
        act = partial(run_admin.resolve, key=key, value=value, seq=seq)
        await self._with_short_lease(run_id, None, act)

    async def delete_run(self, run_id: str, *, lease: Lease | None = None) -> None:
        """Delete a run: blobs first, journal last; the tombstone of its epochs stays.

        Interrupted, it is finished by a second call. ``lease`` is the caller's own; without
        one a brief lease is taken. An unknown run is a no-op. From inside the run it goes
        through the segment's own lease and ends the segment.

        Raises `LeaseHeldError` (``held``) while the run is held.
        """
        check_run_id(run_id)
        caller = await callers.confirmed_caller_of(self._runtime, run_id)
        if caller is not None and lease is None:
            await self._runtime.bridge.call(
                partial(run_admin.check_no_live_child, self._runtime, run_id)
            )
            await on_loop(caller.loop, requests.delete(caller))
            return
        if lease is None and run_id in self._live:
            raise self._held(run_id)
        await self._with_short_lease(run_id, lease, run_admin.delete)

    async def prune_run(self, run_id: str, *, lease: Lease | None = None) -> PruneReport:
        """Delete the checkpoints and summaries that completed calls of a run no longer need.

        Exact references only. ``lease`` is the caller's own; without one a brief lease is
        taken. Raises `LeaseHeldError` (``held``) while the run is held, `ConfigError`
        for one that never began, `JournalCompatibilityError` for another generation's. From
        inside the run it goes through the segment's own lease.
        """
        check_run_id(run_id)
        caller = await callers.confirmed_caller_of(self._runtime, run_id)
        if caller is not None and lease is None:
            return await on_loop(caller.loop, caller.through_writer(prune_inside))
        if lease is None and run_id in self._live:
            raise self._held(run_id)
        return await self._with_short_lease(run_id, lease, prune)

    async def apply_retention(
        self, policy: RetentionPolicy, *, dry_run: bool = False
    ) -> RetentionReport:
        """Delete the terminal runs that ``policy`` no longer keeps, each under a brief lease.

        With ``dry_run`` nothing is changed and the report says what would be. Raises store
        errors of the listing.
        """
        await callers.confirmed_caller(self._runtime)
        return await self._runtime.bridge.call(
            partial(apply_retention, self._runtime, policy, dry_run=dry_run)
        )

    # --- inside -------------------------------------------------------------------------------

    def _held(self, run_id: str) -> LeaseHeldError:
        return LeaseHeldError(
            f"run {run_id!r} is live in this engine: wait for its handle, or cancel it",
            run_id=run_id,
            reason="held",
            holder=self._runtime.owner,
        )

    def _ownership(self, run_id: str, lease: Lease | None) -> Callable[[], Ownership]:
        """Return how the run is taken. Raises `ConfigError` for the lease of another run."""
        if lease is None:
            return partial(self._runtime.own, run_id)
        if check_lease(lease).run_id != run_id:
            message = f"the lease is for run {lease.run_id!r}, not {run_id!r}: acquire that one"
            raise ConfigError(message)
        return partial(ExternalLease, lease)

    def _launch(
        self,
        run_id: str,
        request: StartNew | Resume,
        lease: Lease | None,
        before: LeaseInfo | None = None,
    ) -> RunHandle:
        if callers.caller_of(self._runtime, run_id) is not None:
            raise self._held(run_id)
        take = self._ownership(run_id, lease)
        if lease is None and before is not None:
            take = partial(self._runtime.take_up, run_id, before)
        return self._launch_owned(run_id, request, take, lease)

    def _launch_owned(
        self,
        run_id: str,
        request: StartNew | Resume,
        take: Callable[[], Ownership],
        lease: Lease | None = None,
    ) -> RunHandle:
        self._check_open()
        with self._starting:
            if run_id in self._live:
                raise self._held(run_id)
            handle = RunHandle(
                run_id,
                self._runtime,
                request,
                callers.confirmed(self._runtime, take),
                on_end=self._forget,
                resolve=partial(self.resolve, run_id),
                cancel=partial(self._with_short_lease, run_id, lease, run_admin.cancel),
            )
            self._live[run_id] = handle
        return handle

    def _check_open(self) -> None:
        if self._closed:
            message = "the engine is closed: make a new one"
            raise ConfigError(message)

    def _forget(self, handle: RunHandle) -> None:
        if self._live.get(handle.run_id) is handle:
            del self._live[handle.run_id]

    async def _with_short_lease(
        self, run_id: str, lease: Lease | None, act: Callable[[Runtime, RunWriter], T]
    ) -> T:
        take = callers.confirmed(self._runtime, self._ownership(run_id, lease))
        return await self._runtime.bridge.call(
            partial(run_admin.with_short_lease, self._runtime, take, act)
        )
