"""A record that is lost from a journal is found before anything is paid a second time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import apsw
import pytest

from rulvar.core import Engine, open_stores, workflow
from rulvar.core.audit import audit_run
from rulvar.core.errors import StoreCorruptError
from rulvar.core.journal import HASH_VERSION, JournalEntry, encode_entry, first_loss, read_entries
from rulvar.core.records import JournalRecord, RunMeta

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rulvar.core import Context
    from rulvar.core.stores import StorePair

STEPS = 4
RECORDS = 2 + 2 * STEPS  # how it began, each step's opening and answer, how it settled

paid: list[str] = []


def pay(name: str) -> str:
    paid.append(name)
    return name


@workflow
async def billing(ctx: Context) -> object:
    for name in "abcd":
        await ctx.step(f"pay-{name}", pay, name)
    return await ctx.await_external("approval")


def run_it(stores: StorePair, *, tenures: int = 1) -> None:
    async def go() -> None:
        async with Engine(stores, [billing]) as engine:
            await engine.run(billing, run_id="r")
            for _ in range(tenures - 1):
                await engine.resume("r")

    asyncio.run(go())


def lose(url: str, folder: Path, seq: int) -> None:
    """Take one record out of the journal, past the store."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(folder / "runs.db"))
        connection.execute(
            "DELETE FROM entries WHERE CAST(json_extract(payload, '$.seq') AS INTEGER) = ?", (seq,)
        )
        connection.close()
        return
    (journal,) = [path for path in folder.rglob("*") if path.is_file() and _is_journal(path)]
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"seq":%d,' % seq not in line]
    assert len(kept) == len(lines) - 1
    journal.write_bytes(b"".join(kept))


def _is_journal(path: Path) -> bool:
    return b'"decisionType":"run_start"' in path.read_bytes()


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return f"file:///{tmp_path}/runs"


@pytest.mark.parametrize("seq", range(RECORDS - 1))
def test_a_resume_pays_nothing_over_a_journal_that_lost_a_record(
    url: str, tmp_path: Path, seq: int
) -> None:
    paid.clear()
    with open_stores(url) as stores:
        run_it(stores)
        assert len(stores.journal.load("r")) == RECORDS + 1  # the wait is one more
    assert paid == ["a", "b", "c", "d"]
    lose(url, tmp_path, seq)
    with open_stores(url) as stores:
        for act in ("resume", "run", "cancel", "resolve"):
            with pytest.raises(StoreCorruptError) as damage:
                asyncio.run(_act(stores, act))
            assert damage.value.run_id == "r"
            assert damage.value.position == seq
        found = audit_run(stores, "r")
        assert found.verdict == "damaged"
        assert "records-lost" in {each.code for each in found.findings}
    assert paid == ["a", "b", "c", "d"]


async def _act(stores: StorePair, act: str) -> None:
    async with Engine(stores, [billing]) as engine:
        if act == "resume":
            await engine.resume("r")
        elif act == "run":
            await engine.run(billing, run_id="r")
        elif act == "cancel":
            await engine.cancel("r")
        else:
            await engine.resolve("r", "approval", "yes")


def test_a_damaged_run_can_be_deleted(url: str, tmp_path: Path) -> None:
    with open_stores(url) as stores:
        run_it(stores)
    lose(url, tmp_path, 3)

    async def delete(stores: StorePair) -> None:
        async with Engine(stores, [billing]) as engine:
            await engine.delete_run("r")

    with open_stores(url) as stores:
        asyncio.run(delete(stores))
        assert stores.journal.load("r") == []


def test_the_numbers_go_on_without_a_gap_over_tenures() -> None:
    """Taken over by force, revived, and resolved in between: the next number is always one more."""

    async def go(stores: StorePair) -> None:
        async with Engine(stores, [billing]) as engine:
            await engine.run(billing, run_id="r")
        stores.journal.seize("r", "an operator")  # type: ignore[attr-defined]
        stores.journal.raise_epoch("r", 41)  # type: ignore[attr-defined]
        async with Engine(stores, [billing]) as engine:
            await engine.resolve("r", "approval", "yes")
            assert (await engine.resume("r")).status == "ok"

    with open_stores("sqlite://") as stores:
        asyncio.run(go(stores))
        entries = read_entries("r", stores.journal.load("r"))
        assert len({entry.epoch for entry in entries}) > 2
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert first_loss(entries) is None


def entry(
    seq: int, *, epoch: int | None = 1, ref: int | None = None, hash_version: int = 1
) -> JournalEntry:
    return JournalEntry(
        seq=seq, kind="step", status="ok", epoch=epoch, ref=ref, hash_version=hash_version
    )


def unleased(seq: int, ref: int | None = None) -> JournalEntry:
    return entry(seq, epoch=None, ref=ref, hash_version=HASH_VERSION)


@pytest.mark.parametrize(
    ("entries", "position"),
    [
        ([entry(0), entry(1), entry(3)], 2),
        ([entry(0), entry(1), entry(3, epoch=2)], 2),
        ([entry(1)], 0),
        ([unleased(0), unleased(1), unleased(3)], 2),
        ([unleased(0), entry(2)], 1),
        ([unleased(1)], 0),
        ([entry(0), entry(2, epoch=None), entry(5, epoch=None), entry(6, ref=4)], 3),
        ([entry(0, epoch=None), entry(4), entry(5, ref=3)], 2),
    ],
)
def test_what_is_a_loss(entries: Sequence[JournalEntry], position: int) -> None:
    loss = first_loss(entries)
    assert loss is not None
    assert (loss.position, loss.seq) == (position, entries[position].seq)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(0), entry(1, ref=0), entry(2, epoch=7)],
        [unleased(0), unleased(1, ref=0), entry(2)],
        [entry(3, epoch=None), entry(9, epoch=None), entry(12, epoch=None, ref=4)],
        [entry(0), entry(5, epoch=None), entry(6)],
        [entry(0), entry(5, epoch=None), entry(9), entry(10, ref=5)],
        [entry(0), entry(2, epoch=None), entry(4, epoch=3), entry(5, epoch=3, ref=4)],
    ],
)
def test_what_other_writers_leave_is_no_loss(entries: Sequence[JournalEntry]) -> None:
    assert first_loss(entries) is None


def test_a_journal_of_the_other_engine_is_judged_as_before() -> None:
    """It has gaps, no epochs, and answers whose openings are its own business."""
    with open_stores("sqlite://") as stores:
        for seq, ref in ((2, None), (7, None), (9, 7), (15, 11)):
            text = {"seq": seq, "kind": "agent", "status": "ok", "hashVersion": 1}
            text |= {} if ref is None else {"ref": ref}
            record = JournalRecord(seq=seq, payload=json.dumps(text).encode())
            stores.journal.append("r", record)
        stores.journal.put_meta(
            RunMeta(run_id="r", status="ok", updated_at="2026-01-01T00:00:00.000Z")
        )
        assert audit_run(stores, "r").verdict == "consistent"
    assert b"epoch" not in encode_entry(entry(0, epoch=None))
