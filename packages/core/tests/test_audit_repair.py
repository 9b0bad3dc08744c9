"""Repair: what it writes, under which lease, and everything that it leaves alone."""

from __future__ import annotations

import ast
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rulvar.core.audit
import rulvar.core.engine.repair
from rulvar.core.audit import audit_run, audit_runs, reconcile_run_meta, repair_runs
from rulvar.core.engine import Engine, Worker, workflow
from rulvar.core.errors import ConfigError, OutcomeUnknownError, StoreBusyError
from rulvar.core.records import JournalRecord, JsonMembers, Lease, RunMeta
from rulvar.core.testing import (
    ManualClock,
    ReferenceStore,
    WatchedStores,
    reference_stores,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from rulvar.core.engine import Context
    from rulvar.core.stores import StorePair, Stores
    from rulvar.core.testing import (
        StoreCall,
    )

T0 = "2026-01-02T03:04:05.000Z"
T2 = "2026-01-02T03:04:07.000Z"

EXTRA = JsonMembers({"cost": "1.50", "odd": '{ "b" : 1e2 , "a" : [ ] }', "big": "9" * 40})


def record(seq: int, version: int = 102, **facts: object) -> JournalRecord:
    payload = {"hashVersion": version, "seq": seq, "scope": "", "ordinal": 0, **facts}
    return JournalRecord(seq=seq, payload=json.dumps(payload).encode())


def start(genesis: str = "g") -> JournalRecord:
    value = {"decisionType": "run_start", "workflow": "w", "genesis": genesis}
    return record(0, kind="decision", status="ok", value=value, startedAt=T0)


def begun(seq: int, *, epoch: int | None = None) -> JournalRecord:
    facts = {} if epoch is None else {"epoch": epoch}
    return record(seq, **facts, kind="step", status="running", key=f"s{seq}", startedAt=T0)


def settled(seq: int, status: str, version: int = 102) -> JournalRecord:
    value = {"decisionType": "run_settle", "runStatus": status, "segment": 1}
    return record(seq, version, kind="decision", status="ok", value=value, endedAt=T2)


def full_row(run_id: str, status: str) -> RunMeta:
    """Return a row in which every field has a value of its own."""
    return RunMeta(
        run_id=run_id,
        status=status,
        updated_at=T0,
        name="a name",
        tags=("x", "y"),
        workflow_name="w",
        workflow_hash="sha256:1",
        workflow_source_ref=f"{run_id}/source",
        segments=7,
        genesis="g",
        args_provided=True,
        args_hash="sha256:2",
        hash_version_low=102,
        hash_version_high=102,
        wake_at=T0,
        parent_run_id="p",
        extra=EXTRA,
    )


def behind(stores: Stores, run_id: str = "r", version: int = 102) -> None:
    if version == 102:
        stores.journal.append(run_id, start())
    stores.journal.append(run_id, settled(1, "ok", version))
    stores.journal.put_meta(full_row(run_id, "running"))


def stranded(stores: Stores, run_id: str) -> None:
    stores.journal.append(run_id, start())
    stores.journal.append(run_id, begun(1))
    stores.journal.put_meta(full_row(run_id, "ok"))


def reference(stores: Stores) -> ReferenceStore:
    assert isinstance(stores.journal, ReferenceStore)
    return stores.journal


# --- what is written ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [102, 2])
def test_status_and_time_are_rewritten_and_every_other_field_is_kept(version: int) -> None:
    stores = reference_stores()
    behind(stores, version=version)
    before = reference(stores).snapshot()
    repair = reconcile_run_meta(stores, "r")
    assert (repair.outcome, repair.before.verdict) == ("repaired", "meta-behind")
    assert repair.after.verdict == "consistent"
    after = reference(stores).snapshot()
    assert after.rows == {"r": replace(full_row("r", "ok"), updated_at=T2)}
    assert after.rows["r"].extra == EXTRA
    assert (after.journals, after.blobs) == (before.journals, before.blobs)
    # The brief lease is gone, its epoch stays used.
    assert (after.leases, after.epochs, repair.epoch) == ({}, {"r": 1}, 1)


def test_a_stranded_run_can_be_swept_again() -> None:
    stores = reference_stores()
    stranded(stores, "r")
    assert reconcile_run_meta(stores, "r").outcome == "repaired"
    assert reference(stores).snapshot().rows == {"r": full_row("r", "running")}
    assert audit_run(stores, "r").verdict == "consistent"


def test_a_repair_is_one_write_under_one_lease() -> None:
    stores = reference_stores()
    behind(stores)
    watched = WatchedStores(stores)
    reconcile_run_meta(watched, "r")
    changes = watched.changes()
    assert [call.method for call in changes] == ["acquire", "put_meta", "release"]
    lease = changes[1].lease
    assert lease is not None
    assert (changes[2].lease, lease.epoch) == (lease, 1)
    assert lease.owner.startswith("rulvar-repair:")
    assert len(lease.owner) <= 200
    # Everything that decided was read under it.
    between = [c.method for c in watched.calls if changes[0].number < c.number < changes[1].number]
    assert between == ["get_meta", "load"]


def test_a_dry_run_shows_the_change_and_makes_none() -> None:
    stores = reference_stores()
    behind(stores, "a")
    stranded(stores, "b")
    watched = WatchedStores(stores)
    planned = list(repair_runs(watched, dry_run=True))
    assert [(r.run_id, r.outcome, r.change.status if r.change else "") for r in planned] == [
        ("a", "planned", "ok"),
        ("b", "planned", "running"),
    ]
    assert reconcile_run_meta(watched, "a", dry_run=True) == planned[0]
    assert watched.changes() == []


def test_what_is_not_sound_is_left_as_it_is() -> None:
    stores = reference_stores()
    stores.journal.append("no-row", start())
    stores.journal.append("waiting", record(0, kind="external", status="suspended", key="e"))
    stores.journal.put_meta(full_row("waiting", "ok"))
    stores.journal.append("falls", begun(0, epoch=2))
    stores.journal.append("falls", begun(1, epoch=1))
    stores.journal.put_meta(full_row("falls", "ok"))
    stores.journal.put_meta(full_row("fine", "running"))
    watched = WatchedStores(stores)
    outcomes = {repair.run_id: repair.outcome for repair in repair_runs(watched)}
    assert outcomes == {"no-row": "left", "waiting": "left", "falls": "left", "fine": "unneeded"}
    assert watched.changes() == []


def test_a_catalogue_is_repaired_whole_and_then_consistent() -> None:
    stores = reference_stores()
    for number in range(20):
        behind(stores, f"b{number:02}")
        stranded(stores, f"s{number:02}")
    told: list[int] = []
    repairs = list(repair_runs(stores, progress=told.append))
    assert {repair.outcome for repair in repairs} == {"repaired"}
    assert len(told) == len(repairs) == 40
    assert {audit.verdict for audit in audit_runs(stores)} == {"consistent"}
    assert {repair.outcome for repair in repair_runs(stores)} == {"unneeded"}


# --- who is left alone --------------------------------------------------------------------


def test_a_run_that_a_live_owner_holds_is_skipped_and_named() -> None:
    stores = reference_stores()
    behind(stores, "held")
    behind(stores, "free")
    lease = reference(stores).acquire("held", "worker-7")
    repairs = {repair.run_id: repair for repair in repair_runs(stores)}
    assert {run_id: each.outcome for run_id, each in repairs.items()} == {
        "held": "skipped",
        "free": "repaired",
    }
    assert "worker-7" in (repairs["held"].why or "")
    assert repairs["held"].holder is not None
    assert reference(stores).snapshot().rows["held"] == full_row("held", "running")
    reference(stores).renew(lease)  # its lease was not touched


def at_call(
    stores: Stores, method: str, act: Callable[[], object], *, then_raise: Exception | None = None
) -> WatchedStores:
    """Do something just before the first call of a method."""
    done = False

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal done
        if call.method == method and not done:
            done = True
            act()
            if then_raise is not None:
                raise then_raise
        return perform()

    return WatchedStores(stores, around=around)


def test_an_owner_that_comes_between_audit_and_repair_is_not_raced() -> None:
    stores = reference_stores()
    behind(stores)
    taken = at_call(stores, "acquire", lambda: reference(stores).seize("r", "quick"))
    repair = reconcile_run_meta(taken, "r")
    assert (repair.outcome, repair.after.verdict) == ("skipped", "owned")
    assert "quick" in (repair.why or "")
    assert reference(stores).snapshot().rows["r"].status == "running"


def test_a_successor_that_comes_under_the_repair_loses_nothing() -> None:
    stores = reference_stores()
    behind(stores)

    def succeed() -> None:
        lease = reference(stores).seize("r", "successor")
        stores.journal.append("r", begun(2), lease=lease)  # type: ignore[call-arg] # by its class it does
        stores.journal.put_meta(full_row("r", "suspended"), lease=lease)  # type: ignore[call-arg]

    repair = reconcile_run_meta(at_call(stores, "put_meta", succeed), "r")
    assert repair.outcome == "skipped"
    assert reference(stores).snapshot().rows["r"] == full_row("r", "suspended")
    assert reference(stores).snapshot().leases["r"][0] == "successor"


def test_the_verdict_is_reached_again_under_the_lease() -> None:
    stores = reference_stores()
    behind(stores)
    # Somebody settles the matter between the audit and the acquire, and lets go.
    mended = replace(full_row("r", "ok"), name="mended")
    watched = at_call(stores, "acquire", lambda: stores.journal.put_meta(mended))
    repair = reconcile_run_meta(watched, "r")
    assert (repair.outcome, repair.before.verdict) == ("unneeded", "meta-behind")
    assert reference(stores).snapshot().rows["r"] == mended
    assert [call.method for call in watched.changes()] == ["acquire", "release"]


def test_a_run_deleted_and_recreated_meanwhile_is_not_touched() -> None:
    stores = reference_stores()
    behind(stores)
    fresh = replace(full_row("r", "running"), genesis="another")

    def recreate() -> None:
        reference(stores).delete_whole_run("r")
        stores.journal.put_meta(fresh)
        stores.journal.append("r", start("another"))

    repair = reconcile_run_meta(at_call(stores, "acquire", recreate), "r")
    assert repair.outcome == "unneeded"
    assert reference(stores).snapshot().rows["r"] == fresh


def test_a_run_deleted_meanwhile_stays_deleted() -> None:
    stores = reference_stores()
    behind(stores)
    gone = at_call(stores, "acquire", lambda: reference(stores).delete_whole_run("r"))
    assert reconcile_run_meta(gone, "r").outcome == "unneeded"
    assert reference(stores).snapshot().rows == {}


def test_an_expired_repair_goes_on_only_over_what_it_has_read() -> None:
    clock = ManualClock()
    stores = reference_stores(clock=clock, lease_ttl_ms=1_000)
    behind(stores)
    # The repairer sleeps past its lease; nobody came.
    slow = at_call(stores, "put_meta", lambda: clock.advance(2_000))
    repair = reconcile_run_meta(slow, "r", clock=clock)
    assert (repair.outcome, repair.epoch) == ("repaired", 2)
    # The same, and a writer without a lease was there.
    behind(stores, "q")

    def sleep_through_a_write() -> None:
        clock.advance(2_000)
        stores.journal.append("q", begun(2))

    slow = at_call(stores, "put_meta", sleep_through_a_write)
    repair = reconcile_run_meta(slow, "q", clock=clock)
    assert repair.outcome == "skipped"
    assert reference(stores).snapshot().rows["q"].status == "running"


@pytest.mark.parametrize("error", [StoreBusyError("locked"), OutcomeUnknownError("lost")])
def test_a_store_too_busy_for_one_run_goes_on_with_the_next(error: Exception) -> None:
    stores = reference_stores()
    behind(stores, "a")
    behind(stores, "b")
    busy = at_call(stores, "acquire", lambda: None, then_raise=error)
    repairs = list(repair_runs(busy))
    assert [repair.outcome for repair in repairs] == ["skipped", "repaired"]
    assert repairs[0].why == str(error)


# --- stores of every kind -----------------------------------------------------------------


def test_a_store_without_leases_is_repaired_without_one() -> None:
    stores = reference_stores()
    behind(stores)
    bare = WatchedStores(
        stores,
        without={"acquire", "renew", "release", "revive", "seize", "fenced_writes"}
        | {"get_lease", "list_leases", "get_meta", "list_run_ids"},
    )
    repair = reconcile_run_meta(bare, "r")
    assert (repair.outcome, repair.epoch) == ("repaired", None)
    assert [call.method for call in bare.changes()] == ["put_meta"]


def test_a_leasable_store_that_hides_its_leases_is_asked_by_acquiring() -> None:
    stores = reference_stores()
    behind(stores)
    reference(stores).acquire("r", "worker-7")
    blind = WatchedStores(stores, without={"get_lease", "list_leases", "seize"})
    assert audit_run(blind, "r").verdict == "meta-behind"
    repair = reconcile_run_meta(blind, "r")
    assert repair.outcome == "skipped"
    assert "worker-7" in (repair.why or "")


def test_a_lease_of_unknown_length_is_asked_for_before_anything_is_written() -> None:
    stores = reference_stores(lease_ttl_ms=60_000)
    behind(stores)
    silent = WatchedStores(stores, without={"lease_ttl_ms"})
    with pytest.raises(ConfigError, match="lease_ttl"):
        reconcile_run_meta(silent, "r")
    assert reconcile_run_meta(silent, "r", lease_ttl=60).outcome == "repaired"


# --- with real runs -----------------------------------------------------------------------


class DiedError(BaseException):
    """The process is gone."""


def dying_at_the_terminal_row(stores: Stores) -> StorePair:
    """Cut the process off between the settle and the row: from there on nothing lands."""
    dead = False

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        nonlocal dead
        (first, *_) = (*call.arguments, None)
        if isinstance(first, RunMeta) and first.status != "running":
            dead = True
        if dead:
            raise DiedError
        return perform()

    return WatchedStores(stores, around=around)


@pytest.mark.parametrize("suspends", [False, True])
def test_a_crash_between_settle_and_row_is_repaired_without_a_workflow(suspends: bool) -> None:
    clock = ManualClock()
    stores = reference_stores(clock=clock, lease_ttl_ms=1_000)
    ran: list[str] = []

    @workflow
    async def errand(ctx: Context) -> str:
        await ctx.step("work", lambda: ran.append("work"))
        return str(await ctx.await_external("answer")) if suspends else "done"

    async def crash() -> None:
        engine = Engine(dying_at_the_terminal_row(stores), [errand], clock=clock)
        with pytest.raises(DiedError):
            await engine.run(errand, run_id="r")

    asyncio.run(crash())
    assert audit_run(stores, "r").verdict == "owned"
    clock.advance(1_000)
    repair = reconcile_run_meta(stores, "r", clock=clock)
    status = "suspended" if suspends else "ok"
    assert (repair.before.verdict, repair.outcome) == ("meta-behind", "repaired")
    assert (repair.after.verdict, repair.after.row_status) == ("consistent", status)
    assert ran == ["work"]

    async def go_on() -> object:
        async with Engine(stores, [errand], clock=clock) as engine:
            if suspends:
                await engine.resolve("r", "answer", "done")
            outcome = await engine.resume("r")
            return outcome.status, outcome.value, outcome.executed

    assert asyncio.run(go_on()) == ("ok", "done", 0)
    assert audit_run(stores, "r").verdict == "consistent"


def test_a_run_asleep_is_never_repaired_into_sleeping_past_its_deadline() -> None:
    clock = ManualClock()
    stores = reference_stores(clock=clock, lease_ttl_ms=1_000)

    @workflow
    async def nap(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "rested"

    async def fall_asleep() -> None:
        async with Engine(stores, [nap], clock=clock) as engine:
            await engine.run(nap, run_id="r")

    asyncio.run(fall_asleep())
    asleep = reference(stores).get_meta("r")
    assert asleep is not None
    # A stale writer says that it is over, and knows of no deadline.
    stores.journal.put_meta(replace(asleep, status="ok", wake_at=None))
    assert audit_run(stores, "r").verdict == "meta-behind"
    assert reconcile_run_meta(stores, "r", clock=clock).after.row_status == "running"

    async def sweep() -> object:
        async with Engine(stores, [nap], clock=clock, suspend_after=0) as engine:
            await Worker(engine).run(until_idle=True)
            clock.advance(3_600_000)
            return (await Worker(engine).run(until_idle=True)).outcomes

    assert asyncio.run(sweep()) == {"ok": 1}
    row = reference(stores).get_meta("r")
    assert row is not None
    assert row.status == "ok"


# --- one door -----------------------------------------------------------------------------

MUTATING = frozenset(
    {"append", "put_meta", "put", "delete", "delete_whole_run", "acquire", "renew", "release"}
    | {"revive", "seize", "raise_epoch"}
)


def mutations_called(module: ModuleType) -> dict[str, set[str]]:
    """Return what each call in a module's own text is made on, by the name that is called."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in MUTATING:
                found.setdefault(name, set()).add(ast.unparse(node.func.value))
    return found


def test_no_module_of_the_audit_calls_a_mutating_method_of_a_store() -> None:
    package = Path(str(rulvar.core.audit.__file__)).parent
    assert len(list(package.glob("*.py"))) == 5
    for path in package.glob("*.py"):
        name = "rulvar.core.audit" if path.stem == "__init__" else f"rulvar.core.audit.{path.stem}"
        module = __import__(name, fromlist=["_"])
        called = mutations_called(module)
        assert set(called) <= {"append"}, (path.name, called)
        assert called.get("append", set()) <= {"entries", "judgement.findings", "self.findings"}


def test_the_rewriter_writes_through_the_door_alone() -> None:
    assert mutations_called(rulvar.core.engine.repair) == {"put_meta": {"writer"}}


def test_a_lease_is_no_part_of_a_report() -> None:
    """A report may be logged or sent; it holds no capability to write."""
    stores = reference_stores()
    behind(stores)
    repair = reconcile_run_meta(stores, "r")
    assert not any(isinstance(value, Lease) for value in vars_of(repair))


def vars_of(value: object) -> list[object]:
    slots = [getattr(value, name) for name in getattr(type(value), "__dataclass_fields__", {})]
    return [each for one in slots for each in [one, *vars_of(one)]]
