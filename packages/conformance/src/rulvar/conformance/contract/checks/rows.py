"""Catalogue rows: promises M1 and M2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.interleave import Interleaving, interleave
from rulvar.core.errors import ConfigError
from rulvar.core.filters import matches
from rulvar.core.records import RUN_STATUSES, Blocked, JsonMembers, RunFilter, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext
    from rulvar.conformance.harness.interleave import Ending

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="M1, M2")

_TIME = "2026-01-02T03:04:05.678Z"


def _row(run_id: str, status: str = "running", **fields: object) -> RunMeta:
    return replace(RunMeta(run_id=run_id, status=status, updated_at=_TIME), **fields)  # type: ignore[arg-type] # named by the callers


def _full(run_id: str) -> RunMeta:
    return RunMeta(
        run_id=run_id,
        status="suspended",
        updated_at="2026-12-31T23:59:59.999Z",
        name="a name with 'quotes', \"more\", % and _ and \u00e9 e\u0301 \U0001f600",
        tags=("one", "two", "two words", "%", "\u00e9"),
        workflow_name="flow",
        workflow_hash="sha256:00",
        workflow_source_ref=f"{run_id}/source",
        segments=3,
        genesis="0123456789abcdef",
        args_provided=True,
        args_hash="sha256:11",
        hash_version_low=101,
        hash_version_high=2**53 - 1,
        wake_at="2027-01-01T00:00:00.000Z",
        parent_run_id="parent",
        workflow_version="2",
        recoveries=2,
        blocked=Blocked(
            reason="a 'call' \u00e9", since="2026-12-31T00:00:00.000Z", codes=("a", "b")
        ),
        stopped=3,
    )


def _mine(check: CheckContext, run_filter: RunFilter | None = None) -> list[RunMeta]:
    """List and keep the rows of this trial alone: others may share the place."""
    actor = check.actor("lister")
    rows = actor.call(f"list_runs({run_filter})", lambda: actor.journal.list_runs(run_filter))
    return [row for row in rows if row.run_id in check.known]


def _read(check: CheckContext, run_id: str) -> RunMeta | None:
    return next((row for row in _mine(check) if row.run_id == run_id), None)


@CLAUSES.clause("M1-fields", "Every field of a row comes back.", source="M1")
def _fields(check: CheckContext) -> None:
    worker = check.actor("worker")
    for run, lease in check.tenures(worker, Level.FENCED):
        for meta in (
            _full(run),
            _row(run),
            replace(_full(run), args_provided=False, segments=0, hash_version_low=0, tags=()),
            replace(_full(run), name="", genesis="", tags=("", "")),
            _row(run, "a status of tomorrow"),
        ):
            worker.put_row(meta, lease=lease)
            check.equal("the row", _read(check, run), meta)


@CLAUSES.clause(
    "M1-unknown",
    "Unknown fields come back as their own JSON text.",
    source="M1",
)
def _unknown(check: CheckContext) -> None:
    worker = check.actor("worker")
    extra = JsonMembers(
        {
            "futureField": '{"b": 1, "a" : [1.0, 1e2, -0, 12345678901234567890]}',
            "": "null",
            "text": '"\\u00e9 \\ud83d\\ude00"',
            "segments": '"not a count"',
            "zz": " [ ] ".strip(),
            "aa": "true",
        }
    )
    for run, lease in check.tenures(worker, Level.FENCED):
        meta = replace(_full(run), segments=None, extra=extra)
        worker.put_row(meta, lease=lease)
        found = _read(check, run)
        check.equal("the row", found, meta)
        if found is not None:
            check.equal("the unknown members", list(found.extra.items()), list(extra.items()))


@CLAUSES.clause("M1-largest", "A row may have 64 KiB and a run 64 tags, and no more.", source="M1")
def _largest(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    many = tuple(f"tag-{number}" for number in range(64))
    worker.put_row(_row(run, tags=many))
    check.equal("the row", _read(check, run), _row(run, tags=many))
    large = _row(run, extra=JsonMembers({"x": f'"{"y" * 60_000}"'}))
    worker.put_row(large)
    check.equal("the row", _read(check, run), large)
    strict = worker.raising(ConfigError)
    strict.put_row(_row(run, tags=(*many, "one more")))
    strict.put_row(_row(run, extra=JsonMembers({"x": f'"{"y" * 70_000}"'})))


@CLAUSES.clause(
    "M1-refused",
    "A malformed row is refused as ConfigError, and changes nothing.",
    source="M1",
)
def _refused(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.put_row(_full(run))
    strict = worker.raising(ConfigError)
    wrong: dict[str, tuple[object, ...]] = {
        "status": ("", None, 1, "x" * 201, "\ud800"),
        "updated_at": ("", None, 5),
        "name": (1, "x" * 201),
        "tags": (["a"], "a", ("x" * 201,), (1,)),
        "segments": (-1, True, 1.0, 2**53),
        "args_provided": (1, "true"),
        "hash_version_low": ("101",),
        "recoveries": (-1, True),
        "stopped": ("1",),
        "workflow_version": (2, "x" * 201),
        "blocked": (
            "why",
            Blocked(reason="r", since="s", codes=["a"]),  # type: ignore[arg-type] # wrong on purpose
            Blocked(reason="r", since="s", codes=("a",) * 17),
        ),
        "extra": ({"a": "1"}, JsonMembers({"a": "{"})),
    }
    for field, values in wrong.items():
        for value in values:
            strict.put_row(replace(_full(run), **{field: value}))  # type: ignore[arg-type] # wrong on purpose


@CLAUSES.clause("M2-replace", "A row replaces the one before as a whole.", source="M2")
def _replace(check: CheckContext) -> None:
    worker = check.actor("worker")
    for number, (run, lease) in enumerate(check.tenures(worker, Level.FENCED), 1):
        worker.put_row(replace(_full(run), extra=JsonMembers({"future": "1"})), lease=lease)
        worker.put_row(_row(run, "ok"), lease=lease)
        check.equal("the row", _read(check, run), _row(run, "ok"))
        check.equal("how many rows there are", len(_mine(check)), number)


@CLAUSES.clause(
    "M2-last-returned",
    "With several writers of one row the row is one of theirs, whole.",
    source="M2",
)
def _last(check: CheckContext) -> None:
    run = check.run_id()
    for _ in range(5):
        rows = [
            _row(run, status, name=check.mark(), genesis=check.mark(), tags=(status,))
            for status in RUN_STATUSES
        ]
        check.together([_putting(check.actor("writer"), each) for each in rows])
        check.require(_read(check, run) in rows, "one of the rows that were put", _read(check, run))
    interleave(check, lambda: _put_both(check, run))


def _two_rows(check: CheckContext, run: str) -> tuple[RunMeta, RunMeta]:
    one = replace(_full(run), name=check.mark(), genesis=check.mark(), tags=("one",))
    other = _row(run, "ok", workflow_hash=check.mark(), segments=1, tags=("other", "two"))
    return one, other


def _put_both(check: CheckContext, run: str) -> Interleaving:
    one, other = check.stores.journal, check.another_handle().journal
    mine, theirs = _two_rows(check, run)

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            check.require(ending.returned, "the row lands", ending.words())
        found = _read(check, run)
        check.require(found in {mine, theirs}, f"one of the two rows, whole ({where})", found)

    return Interleaving(lambda: one.put_meta(mine), lambda: other.put_meta(theirs), judge)


@CLAUSES.clause(
    "M2-whole",
    "A reader sees the row before or the row after, never a mixture and never none.",
    source="M2",
)
def _row_whole(check: CheckContext) -> None:
    run = check.run_id()
    check.actor("worker").put_row(_full(run))
    interleave(check, lambda: _read_at_put(check, run))


def _read_at_put(check: CheckContext, run: str) -> Interleaving:
    journal, reader = check.stores.journal, check.another_handle().journal
    before = _read(check, run)
    one, other = _two_rows(check, run)
    after = one if before is not None and before.tags == other.tags else other

    def judge(put: Ending, read: Ending, where: str) -> None:
        for ending in (put, read):
            check.require(ending.returned, "the call returns", ending.words())
        found = [row for row in cast("Sequence[RunMeta]", read.value) if row.run_id == run]
        check.require(
            found in ([before], [after]), f"the row before or the row after ({where})", found
        )

    return Interleaving(lambda: journal.put_meta(after), lambda: reader.list_runs(None), judge)


def _putting(actor: Actor, meta: RunMeta) -> Callable[[], None]:
    return lambda: actor.put_row(meta)


@CLAUSES.clause("M2-order", "Rows are listed by the UTF-8 bytes of their run ids.", source="M2")
def _order(check: CheckContext) -> None:
    worker = check.actor("worker")
    endings = ("b", "a", "B", "a.b", "a-b", "a b", "10", "9", "\u00e9", "z", "\uffee", "\U0001f600")
    runs = [check.run_id(ending) for ending in endings]
    for run in runs:
        worker.put_row(_row(run))
    found = [row.run_id for row in _mine(check)]
    check.equal("the order", found, sorted(runs, key=lambda run: run.encode()))


def _population(check: CheckContext) -> list[RunMeta]:
    worker = check.actor("worker")
    names = (None, "n", "N", "n_", "n%", "nn", "n n", "")
    tags: tuple[tuple[str, ...], ...] = (
        (),
        ("a",),
        ("a", "b"),
        ("b",),
        ("ab",),
        ("a,b",),
        ("%",),
        ("A",),
        ("a", "a"),
        ('a"',),
    )
    rows = []
    for number in range(40):
        row = _row(
            check.run_id(f"{number:02d}"),
            RUN_STATUSES[number % len(RUN_STATUSES)],
            name=names[number % len(names)],
            tags=tags[number % len(tags)],
        )
        rows.append(row)
        worker.put_row(row)
    return sorted(rows, key=lambda row: row.run_id)


def _filters() -> Iterator[RunFilter]:
    yield RunFilter()
    for status in (*RUN_STATUSES, "o", "OK", "%", ""):
        yield RunFilter(statuses=(status,))
    yield RunFilter(statuses=())
    yield RunFilter(statuses=("ok", "error"))
    yield RunFilter(statuses=("ok", "ok"))
    yield RunFilter(statuses=(*(f"status-{n}" for n in range(2000)), "ok"))
    for name in ("n", "N", "n_", "n%", "%", "", "x"):
        yield RunFilter(name=name)
    for tags in (("a",), ("a", "b"), ("b", "a"), ("a", "a"), ("%",), ("a,b",), ('a"',), ("x",)):
        yield RunFilter(tags=tags)
    yield RunFilter(statuses=("running", "ok"), name="n", tags=("a",))
    yield RunFilter(statuses=("running", "ok", "error"), tags=("a",))


@CLAUSES.clause(
    "M2-filter",
    "A filter finds exactly the rows that meet all of its conditions.",
    source="M2",
)
def _filter(check: CheckContext) -> None:
    rows = _population(check)
    check.equal("all rows", _mine(check), rows)
    for wanted in _filters():
        expected = [row for row in rows if matches(row, wanted)]
        check.equal(f"list_runs({wanted})"[:200], _mine(check, wanted), expected)


@CLAUSES.clause(
    "M2-pages",
    "Pages of any size together are the whole listing, filtered before they are cut.",
    source="M2",
)
def _pages(check: CheckContext) -> None:
    rows = _population(check)
    for conditions in (
        RunFilter(),
        RunFilter(statuses=("ok",)),
        RunFilter(statuses=("ok", "running")),
        RunFilter(tags=("a",)),
        RunFilter(name="n"),
        RunFilter(statuses=("ok", "running", "error"), tags=("b",)),
        RunFilter(name="n", tags=("a",)),
    ):
        for limit in (1, 3, 7, 1000):
            found = list(_walk(check, replace(conditions, limit=limit)))
            expected = [row for row in rows if matches(row, conditions)]
            check.equal(f"the pages of {limit} for {conditions}", found, expected)


def _walk(
    check: CheckContext, wanted: RunFilter, between: Callable[[], None] | None = None
) -> Iterator[RunMeta]:
    journal = check.actor("pager").journal
    # Begin just before the trial's own runs: the place may hold others.
    after: str | None = min(check.known)[:-1]
    last = max(check.known)
    while True:
        page = list(journal.list_runs(replace(wanted, after_run_id=after)))
        limit = wanted.limit or 0
        check.require(len(page) <= limit, f"at most {limit} rows", f"{len(page)} rows")
        yield from (row for row in page if row.run_id in check.known)
        if len(page) < limit or page[-1].run_id > last:
            return
        check.require(after is None or page[-1].run_id > after, "a page moves on", page[-1].run_id)
        after = page[-1].run_id
        if between is not None:
            between()


@CLAUSES.clause(
    "M2-pages-move",
    "Pages stay complete while rows before and after the cursor come, change and go.",
    source="M2",
)
def _pages_move(check: CheckContext) -> None:
    rows = _population(check)
    worker = check.actor("busy")
    gone = iter([rows[0].run_id, rows[1].run_id, rows[2].run_id])
    step = iter(range(1000))

    def between() -> None:
        number = next(step)
        run = next(gone, None)
        if run is not None:
            worker.delete(run)
        worker.put_row(_row(check.run_id(f"00-new-{number}")))
        worker.put_row(replace(rows[-1], updated_at=f"2026-01-01T00:00:{number:02d}.000Z"))

    found = [row.run_id for row in _walk(check, RunFilter(limit=4), between)]
    stayed = [row.run_id for row in rows[3:]]
    seen = [run for run in found if run in stayed]
    check.equal("the rows that were there all the time, once each", seen, stayed)


@CLAUSES.clause("M2-filter-refused", "A malformed filter is refused as ConfigError.", source="M2")
def _filter_refused(check: CheckContext) -> None:
    worker = check.actor("worker")
    worker.put_row(_row(check.run_id()))
    strict = worker.raising(ConfigError)
    for wrong in (
        "ok",
        {"statuses": ("ok",)},
        RunFilter(statuses=["ok"]),  # type: ignore[arg-type]
        RunFilter(statuses="ok"),  # type: ignore[arg-type]
        RunFilter(name=1),  # type: ignore[arg-type]
        RunFilter(tags=["a"]),  # type: ignore[arg-type]
        RunFilter(limit=0),
        RunFilter(limit=-1),
        RunFilter(limit=True),
        RunFilter(after_run_id=""),
        RunFilter(after_run_id="a/b"),
    ):
        strict.call(
            f"list_runs({wrong!r})",
            lambda each=wrong: worker.journal.list_runs(each),  # type: ignore[misc] # wrong on purpose
        )


@CLAUSES.clause(
    "M2-lookup",
    "get_meta returns the row that list_runs lists, or None.",
    source="MetaLookup",
    capability="MetaLookup",
)
def _lookup(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    check.equal("the row of an unknown run", worker.journal.get_meta(run), None)
    worker.append(run, 0)
    check.equal("the row of a run without one", worker.journal.get_meta(run), None)
    for meta in (_full(run), _row(run, extra=JsonMembers({"x": "[1]"}))):
        worker.put_row(meta)
        check.equal("the row", worker.journal.get_meta(run), meta)
    for neighbour in (run + "x", run[:-1], run.upper(), run + "%"):
        check.equal(f"the row of {neighbour!r}", worker.journal.get_meta(neighbour), None)
