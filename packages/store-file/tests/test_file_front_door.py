"""Every argument of every call is checked before anything else: on a closed store, too."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import ConfigError
from rulvar.core.records import JournalRecord, RunFilter, RunMeta
from rulvar.stores.file import FileJournalStore, FileStores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORD = JournalRecord(seq=0, payload=b'{"seq":0}')
NO_RUN = "a/b"
NO_REF = "run/../other"

CALLS: list[Callable[[FileJournalStore], object]] = [
    lambda store: store.append(NO_RUN, RECORD),
    lambda store: store.append("run", JournalRecord(seq=0, payload=b'{"seq":1}')),
    lambda store: store.load(NO_RUN),
    lambda store: store.load_after(NO_RUN, 0, 1),
    lambda store: store.load_after("run", -2, 1),
    lambda store: store.load_after("run", 0, 0),
    lambda store: store.put_meta(RunMeta(run_id=NO_RUN, status="ok", updated_at="-")),
    lambda store: store.get_meta(NO_RUN),
    lambda store: store.list_runs(RunFilter(limit=0)),
    lambda store: store.list_run_ids(NO_RUN, 1),
    lambda store: store.list_run_ids(None, 0),
    lambda store: store.delete(NO_RUN),
    lambda store: store.delete_whole_run(NO_RUN),
    lambda store: store.transcripts().put(NO_REF, b""),
    lambda store: store.transcripts().put("run/x", "text"),  # type: ignore[arg-type] # a wrong one
    lambda store: store.transcripts().get(NO_REF),
    lambda store: store.transcripts().list_refs(NO_RUN),
    lambda store: store.transcripts().delete(NO_REF),
    lambda store: store.transcripts().blob_info(NO_REF),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_refused_before_anything_is_looked_at(
    tmp_path: Path, call: Callable[[FileJournalStore], object]
) -> None:
    store = FileJournalStore(tmp_path / "store")
    store.close()
    with pytest.raises(ConfigError):
        call(store)


def test_a_pair_is_opened_with_the_options_of_the_store() -> None:
    assert signature(FileStores.__init__) == signature(FileJournalStore.__init__)
