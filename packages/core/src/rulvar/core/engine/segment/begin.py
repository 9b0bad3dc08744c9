"""How a segment begins: what it reads under its lease, and the first things it writes.

Everything here runs in one bridge thread, before any of the body does. A refusal of any of
its writes means that the segment never began: no step is executed (contract.md#starting-a-run).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rulvar.core.engine.code.workflow import NOT_GIVEN, NotGiven
from rulvar.core.engine.io.ancestors import check_no_unfinished_parent
from rulvar.core.engine.kernel.outcome import Failure, RunOutcome
from rulvar.core.engine.kernel.replay import Replay
from rulvar.core.engine.kernel.run_retries import RETRIED_STATUSES, retry_draft, was_retried_by
from rulvar.core.engine.segment.recoveries import exhaust, recover, recovery_of
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.formatting import command_line
from rulvar.core.journal import (
    HASH_VERSION,
    HASH_WINDOW,
    attempts,
    cancel_begun,
    check_window,
    deadline_of,
    last_settle,
    read_journal,
    run_start,
    works_after,
)
from rulvar.core.journal.drafts import decision_draft
from rulvar.core.records import TERMINAL_STATUSES, RunMeta
from rulvar.core.values import content_hash, normalize
from rulvar.core.wire import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rulvar.core.engine.code.workflow import Given, Workflow
    from rulvar.core.engine.lease.ownership import Predecessor
    from rulvar.core.engine.lease.writer import RunWriter
    from rulvar.core.engine.segment.runtime import Runtime
    from rulvar.core.journal import (
        JournalEntry,
        Settle,
        Start,
    )
    from rulvar.core.records import JournalRecord

__all__ = [
    "BegunSegment",
    "BeingCancelled",
    "Resume",
    "StartNew",
    "begin_segment",
    "over",
    "read_run",
    "reopen",
]

SOURCE_NAME = "source"

_log = logging.getLogger("rulvar.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNew:
    """A caller's request to start a run, or to resume it when it is the same one."""

    workflow: Workflow
    args_provided: bool
    args: object
    name: str | None = None
    tags: tuple[str, ...] = ()
    parent: tuple[str, str] | None = None
    """The run that this one is a child of, and that run's genesis."""
    max_recoveries: Given[int | None] = NOT_GIVEN
    """How often in a row this run may die; left out, it is the workflow's."""
    deadline_ms: int | None = None
    """How long the run may take from its first segment's begin."""
    retried_by: int | None = None
    """The seq of the parent's retry that makes a failed child go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A caller's request to continue a run that has begun; ``retry`` reopens a failed one."""

    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunSegment:
    """A segment that has begun."""

    workflow: Workflow
    args_provided: bool
    args: object
    number: int
    replay: Replay
    last: Settle | None
    grown: bool
    resumed: bool
    unsettled: bool = False
    """Whether the segment before this one has ended neither settled nor stopped in order."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """How often calls were begun that were begun more than once, by their opening's seq."""
    deadline_at: str | None = None
    """When the run is to be over, at the latest."""
    before: RunMeta | None = None
    """The row as it was before this segment, if there was one."""


class BeingCancelled:
    """A run whose cancellation was begun and never finished: nothing else can become of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run's stores say, read under an authority."""

    meta: RunMeta | None
    records: Sequence[JournalRecord]
    entries: list[JournalEntry]
    start: Start | None
    last: Settle | None

    @property
    def grown(self) -> bool:
        """Whether anything was journalled after the last settle."""
        return self.last is not None and self.entries[-1].seq > self.last.seq

    @property
    def outcome(self) -> Settle | None:
        """The settle of a run that is over.

        A run that ended and was begun again, to retry what failed, is not over until it has
        settled again: work after its last settle says so.
        """
        last = self.last
        if last is None or last.status not in TERMINAL_STATUSES:
            return None
        return None if works_after(self.entries, last.seq) else last


def read_run(writer: RunWriter) -> RunState:
    """Read row and journal, give them to the writer, and check the hash version window.

    Raises `JournalCompatibilityError`, `StoreCorruptError` and `SupersededError`.
    """
    entries: list[JournalEntry] = []
    start: Start | None = None

    def genesis_of(records: Sequence[JournalRecord]) -> str | None:
        nonlocal entries, start
        entries = read_journal(writer.run_id, records)
        start = run_start(entries)
        return None if start is None else start.genesis

    meta, records = writer.read(genesis_of)
    check_window(writer.run_id, entries)
    return RunState(
        meta=meta, records=records, entries=entries, start=start, last=last_settle(entries)
    )


def begin_segment(
    runtime: Runtime,
    writer: RunWriter,
    request: StartNew | Resume,
    *,
    predecessor: Predecessor | None = None,
) -> BegunSegment | BeingCancelled | RunOutcome:
    """Begin a segment, or return the outcome of a run that is over, or may die no more.

    ``predecessor`` had the run before and did not give it back, where that is known.

    Raises `ConfigError` when the request does not fit the run, `SupersededError` when the first
    write is refused, and what a store raises.
    """
    state = read_run(writer)
    if state.start is None:
        return _begin(runtime, writer, request, state)
    if isinstance(request, StartNew):
        _check_same(writer.run_id, request, state.start)
    outcome = state.outcome
    if outcome is not None and not _is_to_be_retried(request, state.entries, outcome):
        return over(runtime, writer, state, outcome)
    if cancel_begun(state.entries):
        if state.meta is None:
            writer.put_meta(_row_from(state.start, writer.run_id))
        return BeingCancelled()
    if isinstance(request, Resume) or request.parent is None:
        check_no_unfinished_parent(runtime.reads, writer.run_id, state.start)
    workflow = _workflow(runtime, writer.run_id, request, state.start)
    _check_version(writer.run_id, workflow, state.start)
    _check_body(runtime, writer.run_id, workflow, state.start)
    workflow.check_args(provided=state.start.args_provided)
    if outcome is not None:
        by = request.retried_by if isinstance(request, StartNew) else None
        state.entries.append(reopen(runtime, writer, state, outcome, by=by))
    return _go_on(runtime, writer, workflow, state, state.start, predecessor=predecessor)


def _is_to_be_retried(
    request: StartNew | Resume, entries: Sequence[JournalEntry], outcome: Settle
) -> bool:
    if outcome.status not in RETRIED_STATUSES:
        return False
    if isinstance(request, Resume):
        return request.retry
    return request.retried_by is not None and not was_retried_by(entries, request.retried_by)


def reopen(
    runtime: Runtime, writer: RunWriter, state: RunState, outcome: Settle, *, by: int | None = None
) -> JournalEntry:
    """Journal the retry of a run that failed. Raises as `RunWriter.append`."""
    now = format_time(runtime.clock.now_ms())
    writer.segment = _segment_number(state)
    return writer.append(retry_draft(state.entries, outcome, now=now, by=by))


def _go_on(
    runtime: Runtime,
    writer: RunWriter,
    workflow: Workflow,
    state: RunState,
    start: Start,
    *,
    predecessor: Predecessor | None,
) -> BegunSegment | RunOutcome:
    """Begin a later segment: tell the death of the last one, if it died, then put the row."""
    number = writer.segment = _segment_number(state)
    row = state.meta or _row_from(start, writer.run_id)
    now = format_time(runtime.clock.now_ms())
    limit = start.max_recoveries if start.limits_recoveries else workflow.max_recoveries
    recovery = recovery_of(state.meta, state.entries, state.last, segment=number - 1, limit=limit)
    if recovery.exhausted:
        return exhaust(writer, recovery, state.entries, row, predecessor=predecessor, now=now)
    recover(writer, recovery, state.entries, predecessor=predecessor, now=now)
    writer.put_meta(
        replace(
            row,
            status="running",
            updated_at=now,
            recoveries=recovery.count,
            segments=number,
            genesis=start.genesis,
            wake_at=None,
            hash_version_low=HASH_WINDOW[0],
            hash_version_high=HASH_WINDOW[1],
        )
    )
    return BegunSegment(
        workflow=workflow,
        args_provided=start.args_provided,
        args=start.args,
        number=number,
        replay=Replay.of(state.entries),
        last=state.last,
        grown=state.grown,
        resumed=True,
        unsettled=recovery.died,
        attempts=attempts(state.entries),
        deadline_at=deadline_of(start, state.entries),
        before=state.meta,
    )


def _segment_number(state: RunState) -> int:
    known = [0]
    if state.meta is not None and state.meta.segments is not None:
        known.append(state.meta.segments)
    if state.last is not None and state.last.segment is not None:
        known.append(state.last.segment)
    return max(known) + 1


def _check_same(run_id: str, request: StartNew, start: Start) -> None:
    if request.parent is not None and request.parent != (start.parent_run_id, start.parent_genesis):
        message = (
            f"run {run_id!r} exists and is not a child of this run {request.parent[0]!r}, but of "
            "an earlier one of the same id, or of none: delete it, then resume its parent"
        )
        raise ConfigError(message)
    if request.workflow.name != start.workflow:
        message = (
            f"run {run_id!r} exists and is of workflow {start.workflow!r}, not "
            f"{request.workflow.name!r}: choose another run_id, or resume it as it is"
        )
        raise ConfigError(message)
    mine = content_hash(request.args) if request.args_provided else None
    if request.args_provided != start.args_provided or mine != start.args_hash:
        message = (
            f"run {run_id!r} exists and was started with other arguments: choose another "
            "run_id, or resume it as it is"
        )
        raise ConfigError(message)


def _workflow(runtime: Runtime, run_id: str, request: StartNew | Resume, start: Start) -> Workflow:
    if isinstance(request, StartNew):
        return request.workflow
    found = runtime.workflows.get(start.workflow)
    if found is None:
        known = ", ".join(sorted(runtime.workflows)) or "none"
        message = (
            f"run {run_id!r} is of workflow {start.workflow!r}, which this engine does not have "
            f"(it has: {known}): give it in Engine(workflows=[...])"
        )
        raise ConfigError(message)
    return found


def _check_version(run_id: str, workflow: Workflow, start: Start) -> None:
    """Refuse a run of a version that this workflow does not continue."""
    if workflow.takes(start.workflow_version):
        return
    has = ", ".join(map(repr, (workflow.version, *workflow.accepts)))
    message = (
        f"run {run_id!r} is of version {start.workflow_version!r} of workflow "
        f"{workflow.name!r}, and this code takes {has}: leave it to a worker that has "
        f"that version, or add it to accepts=() where the body still replays it"
    )
    raise ConfigError(message)


def _check_body(runtime: Runtime, run_id: str, workflow: Workflow, start: Start) -> None:
    """Warn of, or refuse, a body whose source is not the one that the run began with."""
    if start.workflow_hash in {None, workflow.hash}:
        return
    message = (
        f"run {run_id!r} was started from a different version of workflow {workflow.name!r}: "
        "its journal may not fit changed code; see what changed with "
        f"{command_line('runs source', run_id, options='--diff')}"
    )
    if runtime.on_source_change == "refuse":
        message += "; restore it, or allow it with on_source_change='warn'"
        raise ConfigError(message)
    _log.warning("%s", message)


def _begin(
    runtime: Runtime, writer: RunWriter, request: StartNew | Resume, state: RunState
) -> BegunSegment:
    """Start afresh: clear old blobs, keep the source, put the row, append ``run_start``."""
    run_id = writer.run_id
    if state.records:
        message = f"run {run_id!r}: its journal does not begin with a run_start: audit the run"
        raise StoreCorruptError(message, run_id=run_id, position=0)
    if isinstance(request, Resume):
        known = "never began: its row has no journal" if state.meta else "is not in this store"
        message = (
            f"run {run_id!r} {known}: check the id, or start it with "
            "run(workflow, args, run_id=...) or 'rulvar run'"
        )
        raise ConfigError(message)
    workflow = request.workflow
    genesis = runtime.ids.token()
    source_ref = f"{run_id}/{SOURCE_NAME}"
    for ref in runtime.reads.refs(run_id):
        writer.delete_blob(ref)
    writer.put_blob(source_ref, workflow.source.encode("utf-8"))
    args_hash = content_hash(request.args) if request.args_provided else None
    now = format_time(runtime.clock.now_ms())
    writer.knows_genesis(genesis)
    number = (state.meta.segments or 0) + 1 if state.meta is not None else 1
    writer.segment = number
    writer.put_meta(
        RunMeta(
            run_id=run_id,
            status="running",
            updated_at=now,
            name=request.name,
            tags=request.tags,
            workflow_name=workflow.name,
            workflow_version=workflow.version,
            workflow_hash=workflow.hash,
            workflow_source_ref=source_ref,
            segments=number,
            recoveries=0,
            genesis=genesis,
            args_provided=request.args_provided,
            args_hash=args_hash,
            parent_run_id=None if request.parent is None else request.parent[0],
            hash_version_low=HASH_VERSION,
            hash_version_high=HASH_VERSION,
        )
    )
    entry = writer.append(
        decision_draft(
            _start_facts(request, genesis, source_ref, args_hash), now=now, started_at=now
        )
    )
    return BegunSegment(
        workflow=workflow,
        args_provided=request.args_provided,
        args=normalize(request.args),
        number=number,
        replay=Replay.of([entry]),
        last=None,
        grown=False,
        resumed=False,
        deadline_at=deadline_of(run_start([entry]), [entry]),
    )


def _start_facts(
    request: StartNew, genesis: str, source_ref: str, args_hash: str | None
) -> dict[str, object]:
    """Return what ``run_start`` says: everything that another worker needs to go on."""
    facts: dict[str, object] = {
        "decisionType": "run_start",
        "workflow": request.workflow.name,
        "workflowVersion": request.workflow.version,
        "workflowHash": request.workflow.hash,
        "workflowSourceRef": source_ref,
        "genesis": genesis,
        "argsProvided": request.args_provided,
    }
    if not isinstance(request.max_recoveries, NotGiven):
        facts["maxRecoveries"] = request.max_recoveries
    if request.deadline_ms is not None:
        facts["deadlineMs"] = request.deadline_ms
    if request.parent is not None:
        facts["parentRunId"], facts["parentGenesis"] = request.parent
    if request.args_provided:
        facts |= {"args": request.args, "argsHash": args_hash}
    return facts


def _row_from(start: Start, run_id: str) -> RunMeta:
    """Return the row that a journal's beginning supports, for a run whose row is gone."""
    return RunMeta(
        run_id=run_id,
        status="running",
        updated_at=start.started_at or "",
        workflow_name=start.workflow,
        workflow_version=start.workflow_version,
        workflow_hash=start.workflow_hash,
        workflow_source_ref=f"{run_id}/{SOURCE_NAME}",
        genesis=start.genesis,
        args_provided=start.args_provided,
        args_hash=start.args_hash,
        parent_run_id=start.parent_run_id,
        hash_version_low=HASH_VERSION,
        hash_version_high=HASH_VERSION,
    )


def over(runtime: Runtime, writer: RunWriter, state: RunState, last: Settle) -> RunOutcome:
    """Return a terminal outcome; repair the row only when it lags behind the journal."""
    meta = state.meta
    if meta is None or meta.status != last.status:
        base = meta or (_row_from(state.start, writer.run_id) if state.start else None)
        if base is not None:
            settled_at = last.settled_at or format_time(runtime.clock.now_ms())
            segments = max(base.segments or 0, last.segment or 0) or None
            writer.put_meta(
                replace(
                    base,
                    status=last.status,
                    updated_at=settled_at,
                    segments=segments,
                    wake_at=None,
                )
            )
    return RunOutcome(
        run_id=writer.run_id,
        status=last.status,
        value=last.value,
        error=Failure.from_json(last.error) if last.error is not None else None,
        segment=last.segment or 0,
        epoch=writer.epoch,
    )
