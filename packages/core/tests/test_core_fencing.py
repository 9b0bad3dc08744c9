"""The start-up checks on stores that tell the truth: declarations are read, then probed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from rulvar.core import fencing
from rulvar.core.errors import (
    ConfigError,
    OutcomeUnknownError,
    StoreBusyError,
)
from rulvar.core.fencing import (
    assert_fenced_writes,
    has_fenced_writes,
    probe_fencing,
)
from rulvar.core.memory import MemoryStores
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import (
    ManualClock,
    ReferenceStore,
    ReferenceTranscripts,
    SeededIds,
    WatchedStores,
    reference_stores,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.fencing import (
        FencingReport,
    )
    from rulvar.core.records import Lease
    from rulvar.core.stores import FencedStores
    from rulvar.core.testing import StoreCall

pytestmark = pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")

MUTATIONS = {"append", "put_meta", "delete", "put_blob", "delete_blob", "renew", "release"}


def pair(store: ReferenceStore) -> Stores:
    return Stores(store, store.transcripts())


# --- declarations -----------------------------------------------------------------------------


def test_the_reference_pair_is_fenced_and_comes_back_itself() -> None:
    stores = reference_stores()
    fenced: FencedStores = assert_fenced_writes(stores)
    assert cast("object", fenced) is stores
    assert has_fenced_writes(stores.journal)
    assert has_fenced_writes(stores.transcripts)
    lease = fenced.journal.acquire("r", "a")
    fenced.transcripts.put("r/x", b"", lease=lease)


def test_an_undeclared_store_is_named_and_so_are_both() -> None:
    memory, reference = MemoryStores(), reference_stores()
    with pytest.raises(ConfigError) as caught:
        assert_fenced_writes(memory)
    assert "MemoryJournalStore" in str(caught.value)
    assert "MemoryTranscriptStore" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        assert_fenced_writes(Stores(reference.journal, memory.transcripts))
    assert "MemoryTranscriptStore" in str(caught.value)
    assert "ReferenceStore" not in str(caught.value)


def test_a_marker_that_is_merely_truthy_is_no_declaration() -> None:
    class Truthy(ReferenceStore):
        fenced_writes = cast("Literal[True]", 1)

    store = Truthy()
    asked: object = store
    assert not has_fenced_writes(asked)
    with pytest.raises(ConfigError, match="Truthy does not declare"):
        assert_fenced_writes(pair(store))


def test_a_marker_without_the_methods_is_said_to_lack_them() -> None:
    class Boast:
        fenced_writes: Literal[True] = True

    stores = Stores(cast("Any", Boast()), reference_stores().transcripts)
    with pytest.raises(ConfigError, match="lacks the methods"):
        assert_fenced_writes(stores)


def test_two_domains_cannot_fence_each_other() -> None:
    one, other = reference_stores(), reference_stores()
    with pytest.raises(ConfigError, match="cannot fence"):
        assert_fenced_writes(Stores(one.journal, other.transcripts))


def test_a_domain_that_is_not_declared_is_not_compared() -> None:
    class Silent(ReferenceTranscripts):
        def __init__(self, store: ReferenceStore) -> None:
            super().__init__(store)
            del self.fencing_domain

    store = ReferenceStore()
    assert_fenced_writes(Stores(store, Silent(store)))


def test_the_other_names_are_the_same_functions() -> None:
    assert fencing.hasFencedWrites is has_fenced_writes
    assert fencing.assertFencedWrites is assert_fenced_writes


# --- the probe, on stores that tell the truth --------------------------------------------------


def hide(store: ReferenceStore, *names: str) -> Any:
    """Return a view of a store without some of its methods."""

    class View:
        def __getattr__(self, name: str) -> object:
            if name in names:
                raise AttributeError(name)
            return getattr(store, name)

    return View()


SEIZE = ("seize", "get_lease", "list_leases")
LEAN = (*SEIZE, "get_meta", "delete_whole_run", "revive", "raise_epoch", "load_after")


@pytest.mark.parametrize("hidden", [(), SEIZE, LEAN])
def test_a_fenced_pair_passes_and_keeps_nothing_but_tombstones(hidden: tuple[str, ...]) -> None:
    store = ReferenceStore(clock=ManualClock())
    store.put_meta(RunMeta(run_id="mine", status="running", updated_at="now"))
    report = probe_fencing(
        Stores(hide(store, *hidden), store.transcripts()), clock=ManualClock(), ids=SeededIds(1)
    )
    assert report.problems == ()
    assert report.fenced
    assert report.run_id == "rulvar-probe-0"
    assert set(report.mutations) >= MUTATIONS
    assert set(report.mutations.values()) == {"refused"}
    tried_live = {finding.mutation for finding in report.findings if finding.lease == "live"}
    assert tried_live == {*MUTATIONS, "renew_all", "acquire"}
    reasons = {f.lease: f.detail for f in report.findings if f.mutation == "append"}
    assert reasons == {
        "live": "",
        "superseded": "superseded",
        "released": "released",
        "foreign-run": "foreign-run",
        "forged owner": "unknown",
        "forged epoch": "unknown",
    }
    after = store.snapshot()
    assert (after.journals, after.leases, after.blobs) == ({}, {}, {})
    assert list(after.rows) == ["mine"]
    assert set(after.epochs) == {"rulvar-probe-0"}
    assert probe_fencing(pair(store)).fenced


def test_no_worker_would_sweep_what_the_probe_writes() -> None:
    seen: set[str] = set()

    class Watched(ReferenceStore):
        def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
            seen.add(meta.status)
            super().put_meta(meta, lease=lease)

    assert probe_fencing(pair(Watched())).fenced
    assert seen == {"cancelled"}


def test_a_run_that_another_probe_holds_is_passed_over() -> None:
    store = ReferenceStore()
    held = [store.acquire(f"rulvar-probe-{n}", "another") for n in range(2)]
    assert probe_fencing(pair(store)).run_id == "rulvar-probe-2"
    for lease in held:
        store.renew(lease)


def test_when_all_are_held_the_answer_is_busy_and_never_not_fenced() -> None:
    store = ReferenceStore()
    for number in range(8):
        store.acquire(f"rulvar-probe-{number}", "another")
    before = store.snapshot()
    with pytest.raises(StoreBusyError, match="rulvar-probe-0"):
        probe_fencing(pair(store))
    assert store.snapshot() == before


def test_what_crashed_probes_left_is_cleared() -> None:
    clock = ManualClock()
    store = ReferenceStore(clock=clock, lease_ttl_ms=10)
    for run_id in ("rulvar-probe-0", "rulvar-probe-3", "rulvar-probe-5-other"):
        lease = store.acquire(run_id, "crashed")
        store.append(run_id, JournalRecord(seq=9, payload=b'{"seq":9}'), lease=lease)
        store.put_meta(RunMeta(run_id=run_id, status="cancelled", updated_at="then"), lease=lease)
        store.transcripts().put(f"{run_id}/left", b"x", lease=lease)
    clock.advance(10)
    assert probe_fencing(pair(store)).fenced
    after = store.snapshot()
    assert (after.journals, after.rows, after.leases, after.blobs) == ({}, {}, {}, {})


def test_probes_at_the_same_time_leave_each_other_alone() -> None:
    store = ReferenceStore()
    barrier = threading.Barrier(4)
    reports: list[FencingReport] = []

    def start() -> None:
        barrier.wait()
        reports.append(probe_fencing(pair(store)))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.problems for r in reports] == [()] * 4
    assert store.list_run_ids(None, 99) == []


def test_another_probe_that_comes_and_goes_is_no_hole() -> None:
    """Between a release and the attempt of the released lease, the run id is free to take."""
    store = ReferenceStore()
    disturbed: list[str] = []

    def around(call: StoreCall, perform: Callable[[], object]) -> object:
        lease = call.lease
        if call.method == "append" and lease is not None and not disturbed:
            known = store.get_lease(lease.run_id)
            if known is None:  # released: another probe clears what it finds, and leaves
                disturbed.append(lease.run_id)
                other = store.acquire(lease.run_id, "another")
                store.delete(lease.run_id, lease=other)
        return perform()

    watched = WatchedStores(pair(store), around=around)
    report = probe_fencing(watched)
    assert len(disturbed) == 1
    assert report.problems == ()


@dataclass
class Rival:
    """What happens just before a call while the probe stalls: its lease ends, another may come."""

    at_call: int
    does: Literal["stay", "come and go", "keep away"]
    store: ReferenceStore
    clock: ManualClock
    has_come: bool = False
    calls: int = 0

    def around(self, call: StoreCall, perform: Callable[[], object]) -> object:
        # Between a look at the lease and what needs none, one probe may always meet another.
        if (
            not self.has_come
            and self.calls >= self.at_call
            and call.method not in {"seize", "list_refs", "delete"}
        ):
            self.has_come = True
            self.clock.advance(self.store.lease_ttl_ms + 1)
            if self.does != "keep away":
                self.come()
        self.calls += 1
        return perform()

    def come(self) -> None:
        self.lease = self.store.acquire("rulvar-probe-0", "another")
        if self.does == "come and go":
            self.store.delete_whole_run("rulvar-probe-0", lease=self.lease)
            return
        meta = RunMeta(run_id="rulvar-probe-0", status="cancelled", updated_at="theirs")
        self.store.put_meta(meta, lease=self.lease)
        self.store.transcripts().put("rulvar-probe-0/theirs", b"", lease=self.lease)

    def require_unharmed(self) -> None:
        self.store.renew(self.lease)
        row = self.store.get_meta("rulvar-probe-0")
        assert row is not None
        assert row.updated_at == "theirs"
        assert self.store.transcripts().get("rulvar-probe-0/theirs") is not None


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(), SEIZE, LEAN, ("fenced_writes",)])
@pytest.mark.parametrize("does", ["stay", "come and go", "keep away"])
@pytest.mark.parametrize("first", [0, 50])
def test_a_probe_that_stalls_until_its_lease_is_over_accuses_nobody(
    hidden: tuple[str, ...], does: Literal["stay", "come and go", "keep away"], first: int
) -> None:
    for at_call in range(first, 2_000, 100):
        clock = ManualClock()
        store = ReferenceStore(clock=clock)
        rival = Rival(at_call, does, store, clock)
        stores = Stores(hide(store, *hidden), store.transcripts())
        try:
            report = probe_fencing(WatchedStores(stores, around=rival.around))
        except StoreBusyError:
            pass
        else:
            assert {problem.outcome for problem in report.problems} <= {"undeclared"}
        if not rival.has_come:
            break
        if does == "stay":
            rival.require_unharmed()


def test_a_lease_that_ends_too_soon_is_busy_and_never_not_fenced() -> None:
    class Racing(ManualClock):
        def now_ms(self) -> int:
            self.advance(1)
            return super().now_ms()

    with pytest.raises(StoreBusyError, match="lease_ttl_ms"):
        probe_fencing(pair(ReferenceStore(clock=Racing(), lease_ttl_ms=2)))


def test_what_the_store_cannot_answer_is_raised_and_not_judged() -> None:
    class Failing(ReferenceStore):
        def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
            del lease
            raise OutcomeUnknownError(meta.run_id)

    store = Failing()
    with pytest.raises(OutcomeUnknownError):
        probe_fencing(pair(store))
    after = store.snapshot()  # it is cleared away all the same
    assert (after.journals, after.rows, after.leases, after.blobs) == ({}, {}, {}, {})


def test_a_store_without_leases_has_no_fence_to_probe() -> None:
    with pytest.raises(ConfigError, match="MemoryJournalStore grants no leases"):
        probe_fencing(MemoryStores())


def test_a_store_that_fences_appends_alone_is_told_what_is_missing() -> None:
    class Undeclared(ReferenceStore):
        fenced_writes = cast("Literal[True]", None)

    report = probe_fencing(Stores(Undeclared(), MemoryStores().transcripts))
    assert not report.fenced
    missing = {s for s, outcome in report.mutations.items() if outcome == "undeclared"}
    assert missing == {"put_meta", "delete", "put_blob", "delete_blob"}
    assert {s for s, outcome in report.mutations.items() if outcome == "refused"} == {
        "append",
        "renew",
        "renew_all",
        "seize",
        "release",
    }
