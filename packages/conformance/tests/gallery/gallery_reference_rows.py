"""Broken catalogue rows over the reference store: what is kept, and what a filter finds."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from gallery_over_reference import broken

from rulvar.core.checks import check_filter, check_meta
from rulvar.core.records import JsonMembers, RunFilter, RunMeta
from rulvar.core.testing import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.core import Lease

_PLAIN = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")


class _ChangesRows(ReferenceStore):
    """A store that keeps what `_kept` makes of a row."""

    def _kept(self, meta: RunMeta) -> RunMeta:
        raise NotImplementedError

    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        super().put_meta(self._kept(meta), lease=lease)


# --- what is kept ---------------------------------------------------------------------------


@broken("put-meta-merges", "a row is merged into the one before", breaks="M2-replace")
class _MergesRows(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        before = self.get_meta(meta.run_id)
        if before is None:
            return meta
        kept = {
            field.name: getattr(before, field.name)
            for field in fields(meta)
            if getattr(meta, field.name) is None
        }
        return replace(meta, **kept)


@broken(
    "put-meta-keeps-unknown-members",
    "unknown members of the row before live on in the new one",
    breaks="M2-replace",
)
class _KeepsUnknownMembers(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        before = self.get_meta(meta.run_id)
        if before is None:
            return meta
        return replace(meta, extra=JsonMembers({**before.extra, **meta.extra}))


@broken("put-meta-drops-unknown-members", "unknown members are dropped", breaks="M1-unknown")
class _DropsUnknownMembers(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        return replace(meta, extra=_PLAIN.extra)


@broken("put-meta-drops-a-field", "a field is forgotten", breaks="M1-fields")
class _DropsField(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        return replace(meta, parent_run_id=None)


@broken(
    "put-meta-takes-zero-for-none",
    "a count of 0 and an empty name come back as None",
    breaks="M1-fields",
)
class _TakesZeroForNone(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        return replace(meta, segments=meta.segments or None, name=meta.name or None)


@broken("put-meta-sorts-tags", "tags become a sorted set", breaks="M1-fields")
class _SortsTags(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        return replace(meta, tags=tuple(sorted(set(meta.tags), reverse=True)))


@broken(
    "put-meta-stamps-time",
    "updated_at is the store's time, not the row's",
    breaks="M1-fields",
)
class _StampsTime(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        return replace(meta, updated_at="2026-06-06T06:06:06.666Z")


@broken("put-meta-refuses-unknown-status", "a status of tomorrow is refused", breaks="M1-fields")
class _RefusesUnknownStatus(_ChangesRows):
    def _kept(self, meta: RunMeta) -> RunMeta:
        if meta.status not in {"running", "suspended", "ok", "error", "cancelled", "exhausted"}:
            raise ValueError(meta.status)
        return meta


@broken("put-meta-unchecked", "a row may be of any size and shape", breaks="M1-refused")
class _TakesAnyRow(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        with self._gate.passing():
            self._fence(meta.run_id, lease)
            self._tables._run_to_change(meta.run_id).row = meta


@broken(
    "put-meta-unlimited",
    "a row may have more than 64 KiB, and any number of tags",
    breaks="M1-largest",
)
class _TakesLargeRows(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(replace(meta, tags=meta.tags[:64], extra=_PLAIN.extra))
        with self._gate.passing():
            self._fence(meta.run_id, lease)
            self._tables._run_to_change(meta.run_id).row = meta


@broken(
    "put-meta-field-by-field",
    "a row is written one field after the other",
    breaks="M2-last-returned",
)
class _WritesFields(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        before = self.get_meta(meta.run_id) or meta
        for field in fields(meta):
            before = replace(
                self.get_meta(meta.run_id) or before, **{field.name: getattr(meta, field.name)}
            )
            super().put_meta(before, lease=lease)


@broken(
    "put-meta-removes-first",
    "the row before is gone before the new one is there",
    breaks="M2-whole",
)
class _RemovesFirst(ReferenceStore):
    def put_meta(self, meta: RunMeta, /, *, lease: Lease | None = None) -> None:
        check_meta(meta)
        with self._gate.passing():
            self._fence(meta.run_id, lease)
            self._tables._run(meta.run_id).row = None
        super().put_meta(meta, lease=lease)


@broken("get-meta-stale", "get_meta returns the row that it saw first", breaks="M2-lookup")
class _StaleRow(ReferenceStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: dict[str, RunMeta] = {}

    def get_meta(self, run_id: str, /) -> RunMeta | None:
        found = super().get_meta(run_id)
        return None if found is None else self._seen.setdefault(run_id, found)


# --- what is found --------------------------------------------------------------------------


class _Lists(ReferenceStore):
    """A store whose rows can be filtered anew."""

    def _everything(self) -> list[RunMeta]:
        return list(super().list_runs(None))


@broken("list-runs-any-tag", "one matching tag is enough", breaks="M2-filter")
class _AnyTag(_Lists):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        found = super().list_runs(replace(wanted, tags=(), limit=None))
        tags = set(wanted.tags)
        return [row for row in found if not tags or tags & set(row.tags)][: wanted.limit]


@broken("list-runs-empty-statuses", "statuses=() matches every row", breaks="M2-filter")
class _EmptyStatuses(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        return super().list_runs(replace(wanted, statuses=wanted.statuses or None))


@broken("list-runs-like-name", "a name is a pattern of SQL LIKE", breaks="M2-filter")
class _LikeName(_Lists):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        if wanted.name != "%":
            return super().list_runs(wanted)
        found = super().list_runs(replace(wanted, name=None, limit=None))
        return [row for row in found if row.name is not None][: wanted.limit]


@broken("list-runs-folds-tags", "tags that differ by case are one", breaks="M2-filter")
class _FoldsTags(_Lists):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        found = super().list_runs(replace(wanted, tags=(), limit=None))
        tags = {tag.casefold() for tag in wanted.tags}
        return [row for row in found if tags <= {tag.casefold() for tag in row.tags}][
            : wanted.limit
        ]


@broken("list-runs-ignores-limit", "a page has every row there is", breaks="M2-pages")
class _IgnoresLimit(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        return super().list_runs(replace(check_filter(run_filter), limit=None))


@broken("list-runs-cuts-first", "a page is cut before it is filtered", breaks="M2-pages")
class _CutsFirst(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        page = super().list_runs(RunFilter(limit=wanted.limit, after_run_id=wanted.after_run_id))
        fits = super().list_runs(replace(wanted, limit=None))
        return [row for row in page if row in fits]


@broken("list-runs-repeats-cursor", "a page begins with the row of the cursor", breaks="M2-pages")
class _RepeatsCursor(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        found = super().list_runs(wanted)
        at = None if wanted.after_run_id is None else self.get_meta(wanted.after_run_id)
        return found if at is None else [at, *found][: wanted.limit]


@broken(
    "list-runs-pages-by-offset",
    "a cursor is remembered as a number of rows: a deletion before it loses one",
    breaks="M2-pages-move",
)
class _PagesByOffset(_Lists):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._offsets: dict[str, int] = {}

    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        wanted = check_filter(run_filter)
        found = list(super().list_runs(replace(wanted, limit=None, after_run_id=None)))
        after = wanted.after_run_id
        start = 0
        if after is not None:
            before = sum(row.run_id <= after for row in found)
            start = self._offsets.get(after, before)
        page = found[start:][: wanted.limit]
        if page:
            self._offsets[page[-1].run_id] = start + len(page)
        return page


@broken("list-runs-by-time", "rows are listed in the order of their first put", breaks="M2-order")
class _ByTime(_Lists):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        order = list(self._tables._runs)
        return sorted(super().list_runs(run_filter), key=lambda row: order.index(row.run_id))


@broken("list-runs-folds-order", "rows are listed without regard to case", breaks="M2-order")
class _FoldsOrder(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        return sorted(super().list_runs(run_filter), key=lambda row: row.run_id.casefold())


@broken(
    "list-runs-unchecked",
    "a malformed filter finds nothing, and is not refused",
    breaks="M2-filter-refused",
)
class _TakesAnyFilter(ReferenceStore):
    def list_runs(self, run_filter: RunFilter | None = None, /) -> Sequence[RunMeta]:
        known: object = run_filter
        fits = known is None or isinstance(known, RunFilter)
        return super().list_runs(run_filter) if fits else ()
