"""Broken front doors over the reference store: ids folded, cut, split, or not checked."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING

from gallery_over_reference import broken

from rulvar.core.checks import check_meta, check_run_id
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core.spi import JournalRecord, Lease, RunMeta


class _ChangesIds(ReferenceStore):
    """A store that keeps a run's journal under what `_key` makes of its id."""

    def _key(self, run_id: str) -> str:
        raise NotImplementedError

    def append(self, run_id: str, record: JournalRecord, /, *, lease: Lease | None = None) -> None:
        key = self._key(check_run_id(run_id))
        with self._gate.passing():
            self._fence(run_id, lease)
        super().append(key, record)

    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        return super().load(self._key(check_run_id(run_id)))


@broken("ids-fold-case", "ids that differ by case are one run", breaks="I-apart")
class _FoldsCase(_ChangesIds):
    def _key(self, run_id: str) -> str:
        return run_id.lower()


@broken("ids-normalised", "ids are brought to NFC, as some file systems do", breaks="I-apart")
class _Normalises(_ChangesIds):
    def _key(self, run_id: str) -> str:
        return unicodedata.normalize("NFC", run_id)


@broken("ids-stripped", "white space around an id is lost", breaks="I-apart")
class _Strips(_ChangesIds):
    def _key(self, run_id: str) -> str:
        return run_id.strip()


@broken(
    "ids-split-at-dot", "what follows a dot is taken for the ending of a file", breaks="I-apart"
)
class _SplitsAtDot(_ChangesIds):
    def _key(self, run_id: str) -> str:
        return run_id.partition(".")[0] or run_id


@broken("ids-cut", "ids are kept by their first 255 bytes", breaks="I-longest")
class _Cuts(_ChangesIds):
    def _key(self, run_id: str) -> str:
        if len(run_id.encode()) > 255:
            message = "File name too long"
            raise OSError(message)
        return run_id


@broken(
    "ids-as-patterns",
    "a deletion takes the id for a pattern of SQL LIKE",
    breaks="I-apart",
)
class _AsPatterns(ReferenceStore):
    def delete(self, run_id: str, /, *, lease: Lease | None = None) -> None:
        super().delete(run_id, lease=lease)
        if run_id.endswith(("%", "_")):
            for row in self.list_runs(None):
                rest = len(row.run_id) - len(run_id) + 1
                if row.run_id.startswith(run_id[:-1]) and (run_id[-1] == "%" or rest == 1):
                    super().delete(row.run_id)


@broken("ids-unchecked", "the run of a row may have any id", breaks="I-refused")
class _TakesAnyId(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(replace(meta, run_id="run"))
        with self._gate.passing():
            self._fence(meta.run_id, lease)
            self._tables._run_to_change(meta.run_id).row = meta


@broken(
    "ids-refused-untyped",
    "a malformed id is refused by whatever error comes first",
    breaks="I-refused",
)
class _RefusesIdsUntyped(ReferenceStore):
    def load(self, run_id: str, /) -> Sequence[JournalRecord]:
        if "/" in run_id:
            raise FileNotFoundError(run_id)
        return super().load(run_id)
