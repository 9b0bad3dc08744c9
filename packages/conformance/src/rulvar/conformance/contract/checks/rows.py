"""Catalogue rows: promises M1 and M2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rulvar.conformance.contract.clauses import Level, Section
from rulvar.conformance.harness.interleave import Crossing, cross
from rulvar.core.errors import ConfigError
from rulvar.core.filters import matches
from rulvar.core.records import RUN_STATUSES, Blocked, JsonMembers, RunFilter, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import Trial
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


def _mine(trial: Trial, run_filter: RunFilter | None = None) -> list[RunMeta]:
    """List and keep the rows of this trial alone: others may share the place."""
    actor = trial.actor("lister")
    rows = actor.call(f"list_runs({run_filter})", lambda: actor.journal.list_runs(run_filter))
    return [row for row in rows if row.run_id in trial.known]


def _read(trial: Trial, run_id: str) -> RunMeta | None:
    return next((row for row in _mine(trial) if row.run_id == run_id), None)


@CLAUSES.clause("M1-fields", "Every field of a row comes back.", source="M1")
def _fields(trial: Trial) -> None:
    worker = trial.actor("worker")
    for run, lease in trial.tenures(worker, Level.FENCED):
        for meta in (
            _full(run),
            _row(run),
            replace(_full(run), args_provided=False, segments=0, hash_version_low=0, tags=()),
            replace(_full(run), name="", genesis="", tags=("", "")),
            _row(run, "a status of tomorrow"),
        ):
            worker.put_row(meta, lease=lease)
            trial.equal("the row", _read(trial, run), meta)


@CLAUSES.clause(
    "M1-unknown",
    "Fields that nobody knows come back as their own JSON text.",
    source="M1",
)
def _unknown(trial: Trial) -> None:
    worker = trial.actor("worker")
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
    for run, lease in trial.tenures(worker, Level.FENCED):
        meta = replace(_full(run), segments=None, extra=extra)
        worker.put_row(meta, lease=lease)
        found = _read(trial, run)
        trial.equal("the row", found, meta)
        if found is not None:
            trial.equal("the unknown members", list(found.extra.items()), list(extra.items()))


@CLAUSES.clause("M1-largest", "A row may have 64 KiB and a run 64 tags, and no more.", source="M1")
def _largest(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    many = tuple(f"tag-{number}" for number in range(64))
    worker.put_row(_row(run, tags=many))
    trial.equal("the row", _read(trial, run), _row(run, tags=many))
    large = _row(run, extra=JsonMembers({"x": f'"{"y" * 60_000}"'}))
    worker.put_row(large)
    trial.equal("the row", _read(trial, run), large)
    strict = worker.raising(ConfigError)
    strict.put_row(_row(run, tags=(*many, "one more")))
    strict.put_row(_row(run, extra=JsonMembers({"x": f'"{"y" * 70_000}"'})))


@CLAUSES.clause(
    "M1-refused",
    "A malformed row is refused as ConfigError, and changes nothing.",
    source="M1",
)
def _refused(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
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
def _replace(trial: Trial) -> None:
    worker = trial.actor("worker")
    for number, (run, lease) in enumerate(trial.tenures(worker, Level.FENCED), 1):
        worker.put_row(replace(_full(run), extra=JsonMembers({"future": "1"})), lease=lease)
        worker.put_row(_row(run, "ok"), lease=lease)
        trial.equal("the row", _read(trial, run), _row(run, "ok"))
        trial.equal("how many rows there are", len(_mine(trial)), number)


@CLAUSES.clause(
    "M2-last-returned",
    "With several writers of one row the row is one of theirs, whole.",
    source="M2",
)
def _last(trial: Trial) -> None:
    run = trial.run_id()
    for _ in range(5):
        rows = [
            _row(run, status, name=trial.mark(), genesis=trial.mark(), tags=(status,))
            for status in RUN_STATUSES
        ]
        trial.together([_putting(trial.actor("writer"), each) for each in rows])
        trial.require(_read(trial, run) in rows, "one of the rows that were put", _read(trial, run))
    cross(trial, lambda: _put_both(trial, run))


def _two_rows(trial: Trial, run: str) -> tuple[RunMeta, RunMeta]:
    one = replace(_full(run), name=trial.mark(), genesis=trial.mark(), tags=("one",))
    other = _row(run, "ok", workflow_hash=trial.mark(), segments=1, tags=("other", "two"))
    return one, other


def _put_both(trial: Trial, run: str) -> Crossing:
    one, other = trial.stores.journal, trial.another_handle().journal
    mine, theirs = _two_rows(trial, run)

    def judge(first: Ending, second: Ending, where: str) -> None:
        for ending in (first, second):
            trial.require(ending.returned, "the row lands", ending.words())
        found = _read(trial, run)
        trial.require(found in {mine, theirs}, f"one of the two rows, whole ({where})", found)

    return Crossing(lambda: one.put_meta(mine), lambda: other.put_meta(theirs), judge)


@CLAUSES.clause(
    "M2-whole",
    "A reader sees the row before or the row after, never a mixture and never none.",
    source="M2",
)
def _row_whole(trial: Trial) -> None:
    run = trial.run_id()
    trial.actor("worker").put_row(_full(run))
    cross(trial, lambda: _read_at_put(trial, run))


def _read_at_put(trial: Trial, run: str) -> Crossing:
    journal, reader = trial.stores.journal, trial.another_handle().journal
    before = _read(trial, run)
    one, other = _two_rows(trial, run)
    after = one if before is not None and before.tags == other.tags else other

    def judge(put: Ending, read: Ending, where: str) -> None:
        for ending in (put, read):
            trial.require(ending.returned, "the call returns", ending.words())
        found = [row for row in cast("Sequence[RunMeta]", read.value) if row.run_id == run]
        trial.require(
            found in ([before], [after]), f"the row before or the row after ({where})", found
        )

    return Crossing(lambda: journal.put_meta(after), lambda: reader.list_runs(None), judge)


def _putting(actor: Actor, meta: RunMeta) -> Callable[[], None]:
    return lambda: actor.put_row(meta)


@CLAUSES.clause("M2-order", "Rows are listed by the UTF-8 bytes of their run ids.", source="M2")
def _order(trial: Trial) -> None:
    worker = trial.actor("worker")
    endings = ("b", "a", "B", "a.b", "a-b", "a b", "10", "9", "\u00e9", "z", "\uffee", "\U0001f600")
    runs = [trial.run_id(ending) for ending in endings]
    for run in runs:
        worker.put_row(_row(run))
    found = [row.run_id for row in _mine(trial)]
    trial.equal("the order", found, sorted(runs, key=lambda run: run.encode()))


def _population(trial: Trial) -> list[RunMeta]:
    worker = trial.actor("worker")
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
            trial.run_id(f"{number:02d}"),
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
def _filter(trial: Trial) -> None:
    rows = _population(trial)
    trial.equal("all rows", _mine(trial), rows)
    for wanted in _filters():
        expected = [row for row in rows if matches(row, wanted)]
        trial.equal(f"list_runs({wanted})"[:200], _mine(trial, wanted), expected)


@CLAUSES.clause(
    "M2-pages",
    "Pages of any size together are the whole listing, filtered before they are cut.",
    source="M2",
)
def _pages(trial: Trial) -> None:
    rows = _population(trial)
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
            found = list(_walk(trial, replace(conditions, limit=limit)))
            expected = [row for row in rows if matches(row, conditions)]
            trial.equal(f"the pages of {limit} for {conditions}", found, expected)


def _walk(
    trial: Trial, wanted: RunFilter, between: Callable[[], None] | None = None
) -> Iterator[RunMeta]:
    journal = trial.actor("pager").journal
    # Begin just before the trial's own runs: the place may hold others.
    after: str | None = min(trial.known)[:-1]
    last = max(trial.known)
    while True:
        page = list(journal.list_runs(replace(wanted, after_run_id=after)))
        limit = wanted.limit or 0
        trial.require(len(page) <= limit, f"at most {limit} rows", f"{len(page)} rows")
        yield from (row for row in page if row.run_id in trial.known)
        if len(page) < limit or page[-1].run_id > last:
            return
        trial.require(after is None or page[-1].run_id > after, "a page moves on", page[-1].run_id)
        after = page[-1].run_id
        if between is not None:
            between()


@CLAUSES.clause(
    "M2-pages-move",
    "Pages stay complete while rows before and after the cursor come, change and go.",
    source="M2",
)
def _pages_move(trial: Trial) -> None:
    rows = _population(trial)
    worker = trial.actor("busy")
    gone = iter([rows[0].run_id, rows[1].run_id, rows[2].run_id])
    step = iter(range(1000))

    def between() -> None:
        number = next(step)
        run = next(gone, None)
        if run is not None:
            worker.delete(run)
        worker.put_row(_row(trial.run_id(f"00-new-{number}")))
        worker.put_row(replace(rows[-1], updated_at=f"2026-01-01T00:00:{number:02d}.000Z"))

    found = [row.run_id for row in _walk(trial, RunFilter(limit=4), between)]
    stayed = [row.run_id for row in rows[3:]]
    seen = [run for run in found if run in stayed]
    trial.equal("the rows that were there all the time, once each", seen, stayed)


@CLAUSES.clause("M2-filter-refused", "A malformed filter is refused as ConfigError.", source="M2")
def _filter_refused(trial: Trial) -> None:
    worker = trial.actor("worker")
    worker.put_row(_row(trial.run_id()))
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
def _lookup(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    trial.equal("the row of an unknown run", worker.journal.get_meta(run), None)
    worker.append(run, 0)
    trial.equal("the row of a run without one", worker.journal.get_meta(run), None)
    for meta in (_full(run), _row(run, extra=JsonMembers({"x": "[1]"}))):
        worker.put_row(meta)
        trial.equal("the row", worker.journal.get_meta(run), meta)
    for neighbour in (run + "x", run[:-1], run.upper(), run + "%"):
        trial.equal(f"the row of {neighbour!r}", worker.journal.get_meta(neighbour), None)
