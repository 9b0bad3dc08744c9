"""Stores with runs in them that are awkward to move, and one that has no room in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.core.errors import StoreFullError
from rulvar.core.records import JournalRecord, JsonMembers, RunMeta
from rulvar.core.stores import Stores
from rulvar.core.testing import ReferenceStore
from rulvar.stores.file import FileStores
from rulvar.stores.file.testing import FaultyFileSystem
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.stores import StorePair


def record(seq: int, epoch: int | None = None) -> JournalRecord:
    more = "" if epoch is None else f',"epoch":{epoch}'
    return JournalRecord(seq=seq, payload=f'{{ "seq": {seq}{more}}}'.encode())


def fill(stores: StorePair, run_ids: list[str]) -> None:
    for number, run_id in enumerate(run_ids):
        for seq in range(0, 3 * number, 2):
            stores.journal.append(run_id, record(seq, epoch=number))
        stores.journal.append(
            run_id, JournalRecord(seq=1000, payload=b'{\n"seq":1000,"v":"\\ud800"}\r\n')
        )
        if number % 3 != 2:
            extra = JsonMembers({"later": '{"x": [1, 2.50]}'})
            stores.journal.put_meta(
                RunMeta(
                    run_id=run_id,
                    status="ok",
                    updated_at="now",
                    tags=("nightly", "é"),
                    extra=extra,
                    genesis="g",
                )
            )
        for name in ("x", "turn/1", "é" * 150)[: number % 4]:
            stores.transcripts.put(f"{run_id}/{name}", name.encode() + b"\0\xff")
    stores.transcripts.put("only a blob/x", b"")


def content(
    stores: Stores,
) -> dict[str, tuple[list[JournalRecord], RunMeta | None, dict[str, bytes | None]]]:
    journal, twin = stores.journal, stores.transcripts
    runs: list[str] = list(journal.list_run_ids(None, 1000))  # type: ignore[attr-defined] # both have it
    return {
        run_id: (
            list(journal.load(run_id)),
            journal.get_meta(run_id),  # type: ignore[attr-defined] # both have it
            {ref: twin.get(ref) for ref in twin.list_refs(run_id)},
        )
        for run_id in runs
    }


def sqlite(path: Path) -> Stores:
    store = SqliteStore(path)
    return Stores(store, store.transcripts())


def files(root: Path) -> FileStores:
    return FileStores(root, filesystem=FaultyFileSystem())


class Stopping(ReferenceStore):
    """Has no room from its n-th mutation on."""

    left = 10**9

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            message = "no room"
            raise StoreFullError(message)


def stopping() -> tuple[Stores, Stopping]:
    """A pair whose every mutation of content counts."""
    store = Stopping()
    tables = store._tables
    for name in ("append", "put_row", "put_blob", "drop_blob"):
        act = getattr(tables, name)

        def counted(*given: object, act: object = act) -> None:
            store._spend()
            act(*given)  # type: ignore[operator] # a method, by its name

        setattr(tables, name, counted)
    return Stores(store, store.transcripts()), store
