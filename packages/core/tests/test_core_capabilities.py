"""What a store can do is asked by name; what a type checker says of it is checked here too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from unittest.mock import MagicMock

import pytest

from rulvar.core import capabilities, spi
from rulvar.core.capabilities import (
    busy_timeout_ms_of,
    declares_fenced_writes,
    fencing_domain_of,
    has_blob_info,
    has_close,
    has_epoch_floor,
    has_fenced_journal,
    has_fenced_transcripts,
    has_journal_tail,
    has_lease_admin,
    has_lease_batch,
    has_lease_revival,
    has_leases,
    has_meta_lookup,
    has_run_inventory,
    has_whole_run_delete,
    lease_ttl_ms_of,
)
from rulvar.core.fencing import has_fenced_writes
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.core.memory import MemoryJournalStore, MemoryTranscriptStore
    from rulvar.core.records import JournalRecord, Lease, RunFilter, RunMeta
    from rulvar.core.spi import (
        FencedJournalStore,
        FencedTranscriptStore,
        JournalStore,
        LeasableStore,
        TranscriptStore,
    )
    from rulvar.core.testing import ReferenceTranscripts


class PlainStore:
    """A store as it was written before leases, with ordinary parameters under its own names."""

    def __init__(self) -> None:
        self.journals: dict[str, list[JournalRecord]] = {}

    def append(self, run: str, entry: JournalRecord) -> None:
        self.journals.setdefault(run, []).append(entry)

    def load(self, run: str) -> list[JournalRecord]:
        return self.journals.get(run, [])

    def put_meta(self, row: RunMeta) -> None: ...

    def list_runs(self, wanted: RunFilter | None = None) -> list[RunMeta]:
        assert wanted is None
        return []

    def delete(self, run: str) -> None:
        self.journals.pop(run, None)


class LeasingStore(PlainStore):
    """One that fences appends alone, with ordinary parameters."""

    def append(self, run: str, entry: JournalRecord, lease: Lease | None = None) -> None:
        assert lease is None
        super().append(run, entry)

    def acquire(self, run: str, who: str) -> Lease:
        raise NotImplementedError

    def renew(self, held: Lease) -> None: ...

    def release(self, held: Lease) -> None: ...


class Metered:
    """A wrapper that forwards, by name, the capabilities that it knows and no other."""

    def __init__(self, inner: FencedJournalStore) -> None:
        self._inner = inner
        self.appended = 0

    @property
    def fenced_writes(self) -> Literal[True]:
        return self._inner.fenced_writes

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        self._inner.append(run_id, record, lease=lease)
        self.appended += 1

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return self._inner.load(run_id)

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        self._inner.put_meta(meta, lease=lease)

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        return self._inner.list_runs(run_filter)

    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        self._inner.delete(run_id, lease=lease)

    def acquire(self, run_id: str, owner: str, /) -> Lease:
        return self._inner.acquire(run_id, owner)

    def renew(self, lease: Lease, /) -> None:
        self._inner.renew(lease)

    def release(self, lease: Lease, /) -> None:
        self._inner.release(lease)


class Without:
    """A view of a store in which one of its methods is not to be seen."""

    def __init__(self, inner: object, hidden: str | None = None) -> None:
        self._inner = inner
        self._hidden = hidden

    def __getattr__(self, name: str) -> object:
        if name == self._hidden:
            raise AttributeError(name)
        return getattr(self._inner, name)


OWED: list[tuple[Callable[[object], bool], type, tuple[str, ...]]] = [
    (has_leases, spi.LeasableStore, ("load",)),
    (has_fenced_journal, spi.FencedJournalStore, ("append", "acquire", "renew", "release")),
    (has_fenced_transcripts, spi.FencedTranscriptStore, ("get", "list_refs")),
    (has_close, spi.Closable, ()),
    (has_meta_lookup, spi.MetaLookup, ()),
    (has_journal_tail, spi.JournalTail, ()),
    (has_lease_admin, spi.LeaseAdmin, ()),
    (has_epoch_floor, spi.EpochFloor, ()),
    (has_lease_batch, spi.LeaseBatch, ()),
    (has_lease_revival, spi.LeaseRevival, ()),
    (has_run_inventory, spi.RunInventory, ()),
    (has_whole_run_delete, spi.WholeRunDelete, ()),
    (has_blob_info, spi.BlobInfo, ()),
]
"""Each guard with its protocol, and what that inherits and the guard asks for too."""

JOURNAL_GUARDS: list[Callable[[object], bool]] = [
    has_leases,
    has_fenced_journal,
    has_close,
    has_meta_lookup,
    has_journal_tail,
    has_lease_admin,
    has_lease_batch,
    has_epoch_floor,
    has_lease_revival,
    has_run_inventory,
    has_whole_run_delete,
]
BLOB_GUARDS: list[Callable[[object], bool]] = [has_fenced_transcripts, has_close, has_blob_info]


def test_the_reference_pair_has_every_capability() -> None:
    store = ReferenceStore(lease_ttl_ms=5)
    assert all(guard(store) for guard in JOURNAL_GUARDS)
    assert all(guard(store.transcripts()) for guard in BLOB_GUARDS)
    guards = {name for name in capabilities.__all__ if name.startswith("has_")}
    assert {guard.__name__ for guard in [*JOURNAL_GUARDS, *BLOB_GUARDS]} == guards
    assert (lease_ttl_ms_of(store), busy_timeout_ms_of(store)) == (5, 0)
    assert fencing_domain_of(store) == fencing_domain_of(store.transcripts())
    assert fencing_domain_of(store) != fencing_domain_of(ReferenceStore())


def test_a_plain_store_has_none() -> None:
    assert not any(guard(PlainStore()) for guard in [*JOURNAL_GUARDS, *BLOB_GUARDS])
    assert has_leases(LeasingStore())
    assert not has_fenced_journal(LeasingStore())
    for ask in (lease_ttl_ms_of, busy_timeout_ms_of, fencing_domain_of):
        assert ask(PlainStore()) is None


@pytest.mark.parametrize("marker", [1, "true", [True], MagicMock(), None, False, 1.0])
def test_a_truthy_marker_is_not_declared(marker: object) -> None:
    store = LeasingStore()
    store.fenced_writes = marker  # type: ignore[attr-defined]
    asked: object = store
    assert not declares_fenced_writes(asked)
    assert not has_fenced_journal(asked)


def test_a_mock_that_answers_everything_declares_nothing() -> None:
    mock = MagicMock()
    assert not declares_fenced_writes(mock)
    assert not has_fenced_journal(mock)
    assert not has_fenced_transcripts(mock)
    for ask in (lease_ttl_ms_of, busy_timeout_ms_of, fencing_domain_of):
        assert ask(mock) is None


def test_the_marker_without_the_methods_is_no_fence() -> None:
    class Boast(PlainStore):
        fenced_writes: Literal[True] = True

    assert declares_fenced_writes(Boast())
    assert not has_fenced_journal(Boast())
    assert not has_fenced_transcripts(Boast())


def test_an_attribute_that_cannot_be_called_is_no_capability() -> None:
    store = PlainStore()
    store.get_meta = "soon"  # type: ignore[attr-defined]
    assert not has_meta_lookup(store)


@pytest.mark.parametrize(("guard", "protocol", "inherited"), OWED)
def test_a_capability_is_there_when_all_its_methods_are(
    guard: Callable[[object], bool], protocol: type, inherited: tuple[str, ...]
) -> None:
    blobs = protocol.__name__ in {"FencedTranscriptStore", "BlobInfo"}
    store = ReferenceStore().transcripts() if blobs else ReferenceStore()
    own = [n for n in vars(protocol) if not n.startswith("_") and n != "fenced_writes"]
    assert own
    assert guard(Without(store))
    assert not [name for name in (*own, *inherited) if guard(Without(store, name))]


def test_a_number_that_is_a_flag_is_no_time() -> None:
    store = PlainStore()
    store.lease_ttl_ms = True  # type: ignore[attr-defined] # a wrong one, on purpose
    assert lease_ttl_ms_of(store) is None


def test_a_wrapper_has_what_it_forwards_and_nothing_else() -> None:
    metered = Metered(ReferenceStore())
    assert has_fenced_journal(metered)
    assert not has_lease_admin(metered)
    assert not has_whole_run_delete(metered)


def test_a_pair_closes_both_even_when_one_fails() -> None:
    class Refusing(PlainStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    class Blobs:
        def put(self, ref: str, blob: bytes) -> None: ...
        def get(self, ref: str) -> bytes | None: ...
        def list_refs(self, run_id: str) -> list[str]:
            return [run_id]

        def delete(self, ref: str) -> None: ...
        def close(self) -> None:
            raise TimeoutError

    journal = Refusing()
    with pytest.raises(TimeoutError), Stores(journal, Blobs()):
        pass
    assert journal.closed == 1


# Never called: a type checker reads these, and fails where an assignment does not hold.


def old_stores_satisfy_the_protocols(plain: PlainStore, leasing: LeasingStore) -> None:
    _journal: JournalStore = plain
    _leasable: LeasableStore = leasing
    _still_a_journal: JournalStore = leasing


def ours_satisfy_the_protocols(
    memory: MemoryJournalStore,
    memory_blobs: MemoryTranscriptStore,
    reference: ReferenceStore,
    twin: ReferenceTranscripts,
    metered: Metered,
) -> None:
    _journal: JournalStore = memory
    _blobs: TranscriptStore = memory_blobs
    _fenced: FencedJournalStore = reference
    _fenced_blobs: FencedTranscriptStore = twin
    _wrapped: FencedJournalStore = metered


def a_plain_store_is_not_fenced(plain: PlainStore, leasing: LeasingStore) -> None:
    _leasable: LeasableStore = plain  # type: ignore[assignment]
    _fenced: FencedJournalStore = leasing  # type: ignore[assignment]


def guards_narrow(store: JournalStore, blobs: TranscriptStore, lease: Lease) -> None:
    if has_fenced_journal(store):
        store.delete("r", lease=lease)
    else:
        store.delete("r", lease=lease)  # type: ignore[call-arg] # not narrowed: mypy must refuse it
    if has_fenced_transcripts(blobs):
        blobs.put("r/x", b"", lease=lease)


def one_guard_narrows_both(store: JournalStore, blobs: TranscriptStore, lease: Lease) -> None:
    if has_fenced_writes(store):
        store.delete("r", lease=lease)
    else:
        store.delete("r", lease=lease)  # type: ignore[call-arg] # not narrowed: mypy must refuse it
    if has_fenced_writes(blobs):
        blobs.put("r/x", b"", lease=lease)
    else:
        blobs.put("r/x", b"", lease=lease)  # type: ignore[call-arg] # not narrowed: mypy must refuse it
