"""The table of workloads: what is begun, how it is finished, what must be true at the end.

A victim begins and dies; whoever comes after it finishes, through the engine's public calls
alone. Where finishing is the same as beginning, a row says it once: a run is started under an
id that it may have already, a deletion is asked for again.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from rulvar.conformance.crash import workflows
from rulvar.conformance.crash.forked_step import WHOLE
from rulvar.conformance.crash.harness import outcome_of
from rulvar.core.audit import repair_runs
from rulvar.core.capabilities import has_leases
from rulvar.core.engine import RetentionPolicy, Worker
from rulvar.core.engine.code.workflow import NOT_GIVEN
from rulvar.core.errors import ConfigError
from rulvar.core.process_identity import own_identity
from rulvar.core.records import TERMINAL_STATUSES, RunFilter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from rulvar.conformance.crash.harness import Harness
    from rulvar.conformance.harness.state import Snapshot
    from rulvar.core.engine import RunHandle, Workflow
    from rulvar.core.records import RunMeta

__all__ = ["WORKLOADS", "Workload", "chosen_workloads"]

Act: TypeAlias = "Callable[[Harness], Awaitable[object]]"

HOUR_MS = 3_600_000
VICTIM_AHEAD_MS = 4 * HOUR_MS
"""Where the victim's clock stands; what is prepared is prepared at the true time."""
SUCCESSOR_AHEAD_MS = 5 * HOUR_MS
"""Where the clock of whoever comes after it stands: every lease has run out."""

_OLD_MS = 3 * HOUR_MS
"""How old a run is that retention takes: prepared ones are, the victim's own are not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row of the table.

    ``begin`` is what the victim does, ``finish`` what comes after it (the same by default),
    and ``result`` what both return. ``prepare`` is done before, unharmed. ``runs`` are the
    terminal settles that each run must have (``r.+`` is the child of ``r``, whatever its number:
    a death that is journalled before it counts), ``gone`` the runs of which nothing may be left,
    ``at_once`` how many calls may be in flight; ``also`` says in words what else is wrong.
    ``hands_over`` says that a run, or its child, is let go in order and taken up again.

    ``again`` makes the workflow of the run ``r``, which is resumed once more at the end.
    ``needs_git``, ``needs_leases`` and ``needs_own_place`` (it goes over the whole catalogue)
    say where it cannot run; ``hide`` names capabilities to leave out; ``lease_ttl_ms`` is for
    one that waits for a renewal.
    """

    name: str
    about: str
    begin: Act
    result: object
    finish: Act | None = None
    prepare: Act | None = None
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    again: Callable[[Harness], Workflow] | None = None
    also: Callable[[Harness, Snapshot], Iterable[str]] | None = None
    at_once: int = 1
    hands_over: bool = False
    hide: frozenset[str] = frozenset()
    lease_ttl_ms: int | None = None
    needs_git: bool = False
    needs_leases: bool = False
    needs_own_place: bool = False


def chosen_workloads(names: Iterable[str] | None, exclude: Iterable[str]) -> list[Workload]:
    """Return the rows of these names in the table's order. Raises `ConfigError`."""
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = set(known if names is None else names)
    without = set(exclude)
    for name in sorted(wanted | without):
        if name not in known:
            message = f"there is no workload {name!r}: choose from {', '.join(known)}"
            raise ConfigError(message)
    return [workload for name, workload in known.items() if name in wanted - without]


# --- acts -----------------------------------------------------------------------------------


def _run(make: Callable[[Harness], Workflow], args: object = NOT_GIVEN) -> Act:
    async def act(harness: Harness) -> object:
        return await harness.through(make(harness), args)

    return act


async def _worker_first(harness: Harness) -> object:
    """Let a worker find the run; start it where it had not begun."""
    async with harness.engine(workflows.plain(harness)) as engine:
        await Worker(engine).run(until_idle=True)
    return await harness.through(workflows.plain(harness), {"n": 7})


async def _hand_over(harness: Harness) -> object:
    """Let a run go in order after each of its steps, and take it up again."""
    handles: list[RunHandle] = []

    def hand_over() -> None:
        handles[-1].drain()

    flow = workflows.handed_over(harness, hand_over)
    outcome = None
    while outcome is None or outcome.status not in TERMINAL_STATUSES:
        async with harness.engine(flow) as engine:
            handles.append(engine.start(flow, run_id=harness.run_id("r")))
            outcome = await handles[-1].result()
    return outcome_of(outcome)


async def _retry(harness: Harness) -> object:
    flow, run_id = workflows.flaky(harness), harness.run_id("r")
    async with harness.engine(flow) as engine:
        outcome = await engine.run(flow, run_id=run_id)
        if outcome.status == "error":
            (harness.folder / "mended").touch()
            outcome = await engine.retry(run_id)
    return outcome_of(outcome)


async def _cancel(harness: Harness) -> object:
    flow, run_id = workflows.waits_with_child(harness), harness.run_id("r")
    async with harness.engine(flow) as engine:
        outcome = await engine.run(flow, run_id=run_id)
        if outcome.status not in TERMINAL_STATUSES:
            cancelled = await engine.cancel(run_id)
            outcome = outcome if cancelled is None else cancelled
    return outcome_of(outcome)


async def _make_repo(harness: Harness) -> None:
    await asyncio.to_thread(workflows.make_repo, harness)


async def _three_runs(harness: Harness) -> None:
    """Prepare a run, and two neighbours whose ids begin as its own does."""
    for name in ("r", "r.0", "rr"):
        await harness.through(workflows.turns(harness), [1, 2], name=name)


async def _one_run(harness: Harness) -> None:
    await harness.through(workflows.turns(harness), [1, 2])


async def _delete(harness: Harness) -> None:
    async with harness.engine() as engine:
        await engine.delete_run(harness.run_id("r"))


async def _prune(harness: Harness) -> None:
    async with harness.engine() as engine:
        await engine.prune_run(harness.run_id("r"))


async def _aged(harness: Harness) -> None:
    """Prepare runs of every kind: two that are over, one that failed, one that sleeps."""
    for name in ("old-1", "old-2"):
        await harness.through(workflows.turns(harness), [1], name=name)
    await harness.through(workflows.fails(harness), name="failed")
    flow = workflows.rests(harness)
    async with harness.engine(flow) as engine:
        await engine.run(flow, run_id=harness.run_id("sleeps"))


async def _retain(harness: Harness) -> None:
    """Let a worker apply retention, and go on with what sleeps until nothing does."""
    flow, run_id = workflows.rests(harness), harness.run_id("sleeps")
    async with harness.engine(flow) as engine:
        for _ in range(3):
            worker = Worker(engine, retention=RetentionPolicy(older_than=_OLD_MS / 1000))
            await worker.run(until_idle=True)
            if (await engine.resume(run_id)).status in TERMINAL_STATUSES:
                return
            harness.forward()


async def _owned_by_the_dead(harness: Harness) -> None:
    await asyncio.to_thread(_leave_owned, harness)


def _leave_owned(harness: Harness) -> None:
    """Let a process that is gone have the run, under a lease that is live for the victim."""
    identity = own_identity()
    if identity is None or not has_leases(harness.stores.journal):
        return  # nobody can tell here that a process is gone: the run is just begun
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    harness.forward(VICTIM_AHEAD_MS)
    owner = f"kill-points:{replace(identity, pid=gone.pid)}:dead"
    harness.stores.journal.acquire(harness.run_id("r"), owner)


async def _behind(harness: Harness) -> None:
    """Prepare rows that lag behind their journals, as crashes leave them."""
    for name in ("r", "other"):
        await harness.through(workflows.plain(harness), {"n": 7}, name=name)
        row = _row(harness, name)
        harness.stores.journal.put_meta(replace(row, status="running"))


async def _repair(harness: Harness) -> None:
    await asyncio.to_thread(lambda: list(repair_runs(harness.stores)))


def _row(harness: Harness, name: str) -> RunMeta:
    run_id = harness.run_id(name)
    rows = harness.stores.journal.list_runs(RunFilter())
    return next(row for row in rows if row.run_id == run_id)


# --- what else must be true -------------------------------------------------------------------


def _pruned(harness: Harness, state: Snapshot) -> Iterable[str]:
    run_id = harness.run_id("r")
    refs = [ref for ref, _ in state[run_id].blobs]
    if refs != [f"{run_id}/source"]:
        yield f"of the blobs of {run_id!r} only its source is needed, but there are {refs}"


def _all_kept(harness: Harness, state: Snapshot) -> Iterable[str]:
    for name in ("r.0", "rr"):
        run_id = harness.run_id(name)
        if len(state[run_id].blobs) < 2 or not state[run_id].journal:  # noqa: PLR2004
            yield f"{run_id!r} is a neighbour, and is not whole any more"


_PLAIN = ["FIRST", True, True, "ValueError", "LAST", 7]
_CHANGES = ["-one", "+two", "+new"]
_DELETED = {"r.0": ("ok",), "rr": ("ok",)}

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="steps",
        about="plain and async steps, a failing one, recorded time and chance",
        begin=_run(workflows.plain, {"n": 7}),
        result=["ok", _PLAIN],
        runs={"r": ("ok",)},
        again=workflows.plain,
    ),
    Workload(
        name="parallel",
        about="three branches, two of them at a time",
        begin=_run(workflows.branches, ["a", "b", "c"]),
        result=["ok", ["A1A2", "B1B2", "C1C2", "LAST"]],
        runs={"r": ("ok",)},
        again=workflows.branches,
        at_once=2,
    ),
    Workload(
        name="turns",
        about="a turn loop with a checkpoint after every turn, and summaries",
        begin=_run(workflows.turns, [1, 2]),
        result=["ok", workflows.RESULT_OF_TURNS],
        runs={"r": ("ok",)},
        again=workflows.turns,
    ),
    Workload(
        name="worktree",
        about="work in a git worktree, whose patch is kept, beside a step",
        prepare=_make_repo,
        begin=_run(workflows.worktree),
        result=["ok", [["changed", ["kept.txt", "new.txt"], _CHANGES], "BESIDE", "LAST"]],
        runs={"r": ("ok",)},
        again=workflows.worktree,
        at_once=2,
        needs_git=True,
    ),
    Workload(
        name="suspension",
        about="a question that is resolved from outside while the run is suspended",
        begin=_run(workflows.waits),
        result=["ok", ["FIRST", {"by": "me"}, "LAST"]],
        runs={"r": ("ok",)},
        again=workflows.waits,
    ),
    Workload(
        name="sleep",
        about="a sleep and a deadline, over three segments",
        begin=_run(workflows.rests),
        result=["ok", ["TIRED", "late", "AWAKE"]],
        runs={"r": ("ok",)},
        again=workflows.rests,
    ),
    Workload(
        name="child",
        about="a run that waits for a child run of its own",
        begin=_run(workflows.parent),
        result=["ok", ["FIRST", ["ONE", "TWO", "given"], "LAST"]],
        runs={"r": ("ok",), "r.+": ("ok",)},
        again=workflows.parent,
    ),
    Workload(
        name="renewal",
        about="a step that outlasts a third of its lease",
        begin=_run(workflows.slow),
        result=["ok", ["SLOW"]],
        runs={"r": ("ok",)},
        again=workflows.slow,
        needs_leases=True,
        lease_ttl_ms=900,
    ),
    Workload(
        name="renewal-of-two",
        about="a run and its child, whose leases are renewed in one call",
        begin=_run(workflows.slow_child),
        result=["ok", ["SLOW"]],
        runs={"r": ("ok",), "r.+": ("ok",)},
        again=workflows.slow_child,
        needs_leases=True,
        lease_ttl_ms=1_500,
    ),
    Workload(
        name="forked",
        about="a step that forks the process, whose child tries the store",
        begin=_run(workflows.forks),
        result=["ok", ["FIRST", WHOLE, "LAST"]],
        runs={"r": ("ok",)},
        again=workflows.forks,
    ),
    Workload(
        name="dead-owner",
        about="a run that is seized from an owner whose process is gone",
        prepare=_owned_by_the_dead,
        begin=_run(workflows.plain, {"n": 7}),
        result=["ok", _PLAIN],
        runs={"r": ("ok",)},
        again=workflows.plain,
        needs_leases=True,
    ),
    Workload(
        name="worker",
        about="a run that a worker finds and continues",
        begin=_run(workflows.plain, {"n": 7}),
        finish=_worker_first,
        result=["ok", _PLAIN],
        runs={"r": ("ok",)},
        again=workflows.plain,
        needs_own_place=True,
    ),
    Workload(
        name="handed-over",
        about="a run that is let go in order after each step, and taken up again",
        begin=_hand_over,
        result=["ok", ["ONE", "TWO", "THREE"]],
        runs={"r": ("ok",)},
        again=lambda harness: workflows.handed_over(harness, lambda: None),
        hands_over=True,
    ),
    Workload(
        name="error",
        about="a body that fails: settled as error",
        begin=_run(workflows.fails),
        result=["error", "ValueError: as it should"],
        runs={"r": ("error",)},
        again=workflows.fails,
    ),
    Workload(
        name="retry",
        about="a failed run that is begun again with its failed step",
        begin=_retry,
        result=["ok", ["FIRST", "FLAKY", "LAST"]],
        runs={"r": ("error", "ok")},
        again=workflows.flaky,
    ),
    Workload(
        name="cancel-inside",
        about="a run that is cancelled by one of its own steps, while its child is at work",
        begin=_run(workflows.calls_off),
        result=["cancelled", None],
        runs={"r": ("cancelled",), "r.+": ("cancelled",)},
        again=workflows.calls_off,
        at_once=2,
        hands_over=True,
    ),
    Workload(
        name="cancel",
        about="a suspended run that is cancelled with its child",
        begin=_cancel,
        result=["cancelled", None],
        runs={"r": ("cancelled",), "r.+": ("cancelled",)},
        again=workflows.waits_with_child,
    ),
    Workload(
        name="delete",
        about="a run with blobs is deleted, in one call where the store has it",
        prepare=_three_runs,
        begin=_delete,
        result=None,
        runs=_DELETED,
        gone=("r",),
        also=_all_kept,
    ),
    Workload(
        name="delete-by-calls",
        about="a run with blobs is deleted blob by blob, its journal last",
        prepare=_three_runs,
        begin=_delete,
        result=None,
        runs=_DELETED,
        gone=("r",),
        also=_all_kept,
        hide=frozenset({"delete_whole_run"}),
    ),
    Workload(
        name="prune",
        about="checkpoints and summaries of a completed loop are taken away",
        prepare=_one_run,
        begin=_prune,
        result=None,
        runs={"r": ("ok",)},
        again=workflows.turns,
        also=_pruned,
    ),
    Workload(
        name="retention",
        about="a worker deletes old runs and continues one that sleeps",
        prepare=_aged,
        begin=_retain,
        result=None,
        runs={"sleeps": ("ok",), "failed": ("error",)},
        gone=("old-1", "old-2"),
        needs_own_place=True,
    ),
    Workload(
        name="repair",
        about="rows that lag behind their journals are rewritten",
        prepare=_behind,
        begin=_repair,
        result=None,
        runs={"r": ("ok",), "other": ("ok",)},
        again=workflows.plain,
        needs_own_place=True,
    ),
)
"""Every workload, in the order in which they are run."""
