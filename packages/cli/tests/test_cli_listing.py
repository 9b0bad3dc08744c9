"""A listing of any length: read and printed page by page, in one order, none of it kept."""

from __future__ import annotations

import gc
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from rulvar.cli.commands import list_runs as module
from rulvar.cli.main import main
from rulvar.core import open_stores
from rulvar.core.errors import StoreCorruptError
from rulvar.core.records import RunMeta
from rulvar.core.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rulvar.core.records import RunFilter
    from rulvar.core.spi import JournalStore, TranscriptStore

MANY = 25


@pytest.fixture(params=["sqlite:///runs.db", "file:///runs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of a few pages: the pages are made small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_FIRST_PAGE", 3)
    monkeypatch.setattr(module, "_PAGE", 7)
    monkeypatch.setattr(module, "_FEW", 2)
    url = str(request.param)
    with open_stores(url) as stores:
        for number in range(MANY):
            stores.journal.put_meta(row(number))
    return url


def row(number: int) -> RunMeta:
    return RunMeta(
        run_id=f"run-{number:03d}",
        status="error" if number % 2 else "ok",
        updated_at="2026-01-01T00:00:00.000Z",
        name="long name of a later page" if number == MANY - 1 else "short",
        tags=("late",) if number > MANY // 2 else (),
        workflow_name="flows:count",
        segments=1,
    )


row_of = row


def ids(numbers: Sequence[int]) -> list[str]:
    return [f"run-{number:03d}" for number in numbers]


@pytest.mark.parametrize(
    ("options", "expected", "next_after"),
    [
        (("--limit", "100"), range(MANY), None),
        (("--limit", str(MANY)), range(MANY), None),
        (("--limit", str(MANY - 1)), range(MANY - 1), "run-023"),
        (("--limit", "3"), range(3), "run-002"),
        (("--limit", "4", "--after", "run-009"), range(10, 14), "run-013"),
        (("--limit", "9", "--status", "error"), range(1, 18, 2), "run-017"),
        (("--tag", "late", "--after", "run-020"), range(21, MANY), None),
        (("--name", "nothing of this name"), (), None),
    ],
)
def test_a_listing_of_several_pages_is_one_document_and_one_table(
    store: str, options: tuple[str, ...], expected: Sequence[int], next_after: str | None
) -> None:
    command = ("runs", "ls", "--store", store, *options)
    document = json.loads(CliRunner().invoke(main, (*command, "--json")).stdout)
    assert [run["run_id"] for run in document["runs"]] == ids(expected)
    assert document["next_after"] == next_after
    assert set(document) == {"runs", "next_after"}
    told = CliRunner().invoke(main, command)
    titles, *rows = told.stdout.splitlines()
    if expected:
        assert titles.startswith("RUN")
        assert [line.split()[0] for line in rows] == ids(expected)
    else:
        assert told.stdout == "no runs\n"
    assert (next_after is not None) == ("more runs follow: --after" in told.stderr)


def test_a_longer_table_keeps_every_column_and_widens_where_a_page_needs_it(store: str) -> None:
    lines = CliRunner().invoke(main, ("runs", "ls", "--store", store)).stdout.splitlines()
    titles = "RUN STATUS WORKFLOW NAME TAGS SEGMENTS UPDATED HELD BY NOTE"
    assert lines[0].split() == titles.split()
    assert "long name of a later page" in lines[-1]
    assert sum(line.startswith("RUN") for line in lines) == 1
    few = CliRunner().invoke(main, ("runs", "ls", "--store", store, "--limit", "2")).stdout
    assert "TAGS" not in few.splitlines()[0]


class PagedJournal:
    """A journal that lists: how many rows are alive when a page is read, and what is printed."""

    def __init__(self, output: io.StringIO, *, damaged_after: int | None = None) -> None:
        self.output = output
        self.damaged_after = damaged_after
        self.alive: list[int] = []
        self.printed: list[int] = []

    def list_runs(self, run_filter: RunFilter) -> Sequence[RunMeta]:
        assert run_filter.limit is not None
        gc.collect()
        self.alive.append(sum(type(each) is RunMeta for each in gc.get_objects()))
        self.printed.append(self.output.getvalue().count("run-"))
        after = run_filter.after_run_id
        first = 0 if after is None else int(after.removeprefix("run-")) + 1
        if self.damaged_after is not None and first > self.damaged_after:
            message = "the table of rows cannot be read"
            raise StoreCorruptError(message)
        return [row(number) for number in range(first, min(first + run_filter.limit, 200))]


def listed(
    monkeypatch: pytest.MonkeyPatch, *options: str, damaged_after: int | None = None
) -> tuple[PagedJournal, str, int]:
    monkeypatch.setattr(module, "_FIRST_PAGE", 3)
    monkeypatch.setattr(module, "_PAGE", 7)
    output = io.StringIO()
    journal = PagedJournal(output, damaged_after=damaged_after)
    stores = Stores(cast("JournalStore", journal), cast("TranscriptStore", object()))
    monkeypatch.setattr(module, "opened_stores", lambda *_, **__: stores)
    monkeypatch.setattr("sys.stdout", output)
    with pytest.raises(SystemExit) as left:
        main(["runs", "ls", "--store", "memory:", "--limit", "1000", *options])
    return journal, output.getvalue(), cast("int", left.value.code)


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_page_is_printed_and_forgotten_before_the_next_but_one_is_read(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    journal, text, status = listed(monkeypatch, *options)
    assert status == 0
    assert text.count("run-") == 200
    before = journal.alive[0]
    assert max(journal.alive) - before <= 2 * 8
    assert journal.printed[2:] == [3 + 7 * at for at in range(1, len(journal.printed) - 1)]


def test_a_store_that_fails_in_the_middle_leaves_a_whole_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for damaged_after, rows in ((20, 24), (2, 3)):
        _, text, status = listed(monkeypatch, "--json", damaged_after=damaged_after)
        document = json.loads(text)
        assert status == 5
        assert [run["run_id"] for run in document["runs"]] == ids(range(rows))
        assert document["error"]["code"] == "store-corrupt"
    _, text, status = listed(monkeypatch, "--json", damaged_after=-1)
    assert (status, list(json.loads(text))) == (5, ["error"])


def test_what_standard_output_cannot_encode_is_escaped_on_every_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.row", lambda number: replace(row_of(number), name="\xfc"))
    raw = io.BytesIO()
    monkeypatch.setattr(io, "StringIO", lambda: AsciiOutput(raw))
    _, text, _ = listed(monkeypatch, "--json")
    assert text.isascii()
    assert {run["name"] for run in json.loads(text)["runs"]} == {"\xfc"}


class AsciiOutput(io.TextIOWrapper):
    """Standard output of a terminal that knows ASCII alone."""

    def __init__(self, raw: io.BytesIO) -> None:
        super().__init__(raw, encoding="ascii", write_through=True)
        self.raw_bytes = raw

    def getvalue(self) -> str:
        return self.raw_bytes.getvalue().decode("ascii")
