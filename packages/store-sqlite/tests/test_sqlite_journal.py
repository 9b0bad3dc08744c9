"""Journals, rows, blobs and inventories: what goes in comes out, in order, whole."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from rulvar.core.errors import (
    ConfigError,
    JournalOrderViolation,
    StoreCorruptError,
)
from rulvar.core.records import BlobStat, JournalRecord, JsonMembers, RunFilter, RunMeta
from rulvar.stores.sqlite import reads
from rulvar.stores.sqlite.store import SqliteStore

WHEN = "2026-01-01T00:00:00.000Z"


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteStore:
    path = ":memory:" if request.param == "memory" else tmp_path / "runs.db"
    opened = SqliteStore(path)
    request.addfinalizer(opened.close)  # noqa: PT021 - the fixture returns the store itself
    return opened


def record(seq: int, text: str = '{"seq":%d}') -> JournalRecord:
    return JournalRecord(seq=seq, payload=(text % seq).encode())


def row(run_id: str, status: str = "running", **fields: object) -> RunMeta:
    return RunMeta(run_id=run_id, status=status, updated_at=WHEN, **fields)  # type: ignore[arg-type]


SPELLINGS = [
    '{"seq":%d}',
    ' {\n\t"kind" : "step", "seq" : %d }\r\n',
    '{"seq":%d,"value":"\\ud800 \\u0000 \\/ \u00e9 \U0001f600 \u2028"}',
    '{"a":{"seq":9},"seq":%d,"big":123456789012345678901234567890,"x":1e400}',
]


def test_payloads_come_back_byte_for_byte_in_order(store: SqliteStore) -> None:
    written = [record(seq * 3, text) for seq, text in enumerate(SPELLINGS)]
    for one in written:
        store.append("run", one)
    assert store.load("run") == written
    assert store.load("run") == written
    assert store.load_after("run", -1, 10) == written
    assert store.load_after("run", 3, 1) == written[2:3]
    assert store.load_after("run", 9, 1) == []
    assert store.load("nobody") == []


@pytest.mark.slow
def test_a_payload_of_many_megabytes_round_trips(store: SqliteStore) -> None:
    large = record(0, '{"seq":%d,"value":"' + "x" * (16 * 1024 * 1024 - 21) + '"}')
    store.append("run", large)
    assert store.load("run") == [large]


@pytest.mark.parametrize("seq", [5, 4, 0])
def test_a_seq_that_is_not_above_the_tail_is_refused(store: SqliteStore, seq: int) -> None:
    store.append("run", record(5))
    with pytest.raises(JournalOrderViolation) as refused:
        store.append("run", record(seq))
    assert (refused.value.run_id, refused.value.seq, refused.value.tail_seq) == ("run", seq, 5)
    assert store.load("run") == [record(5)]
    store.append("other", record(seq))
    store.append("run", record(2**53 - 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"\xef\xbb\xbf" + b'{"seq":1}',
        '{"seq":1}'.encode("utf-16"),
        b'{"seq":1,"x":NaN}',
        b'{"seq":1}\x00garbage',
        b'{"seq":1.0}',
        b'{"seq":true}',
        b'{"seq":1,"seq":1}',
        b'{"seq":1,"x":"\xed\xa0\x80"}',
        b'{"seq":2}',
        b"[1]",
        b'{"seq":1,}',
    ],
)
def test_what_is_no_record_lands_nowhere(store: SqliteStore, payload: bytes) -> None:
    with pytest.raises(ConfigError):
        store.append("run", JournalRecord(seq=1, payload=payload))
    assert store.list_run_ids(None, 10) == []


def test_an_undecodable_record_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        store.append("run", record(0))
        damage = apsw.Connection(str(path))
        insert = "INSERT INTO entries (run_id, payload) VALUES (?, ?)"
        damage.execute(insert, ("run", '{"seq": 1, "x": NaN}'))
        damage.execute(insert, ("fraction", '{"seq":1.5}'))
        no_utf8 = "INSERT INTO entries (run_id, payload) VALUES ('utf', CAST(? AS TEXT))"
        damage.execute(no_utf8, (b'{"seq":1,"a":"\xff"}',))
        damage.close()
        store.append("run", record(2))
        with pytest.raises(StoreCorruptError) as corrupt:
            store.load("run")
        assert (corrupt.value.run_id, corrupt.value.position) == ("run", 1)
        with pytest.raises(StoreCorruptError):
            store.load_after("run", 0, 5)
        assert store.load_after("run", 1, 5) == [record(2)]
        for run_id in ("fraction", "utf"):
            with pytest.raises(StoreCorruptError):
                store.load(run_id)


@pytest.mark.parametrize(
    ("payloads", "position"),
    [
        (['{"seq":0}', '{"seq":1}', '{"seq":1,"again":true}'], 2),
        (['{"seq":0}', '{"seq":7}', '{"seq":3}'], 2),
        (['{"seq":0}', '{"no":"seq"}', '{"seq":2}'], 1),
        (['{"seq":0}', '{"seq":1}', '{"seq":null}'], 2),
        (['{"seq":0}', "[1]", '{"seq":2}'], 1),
    ],
)
def test_what_another_writer_left_in_disorder_is_refused_by_both_reads(
    tmp_path: Path, payloads: list[str], position: int
) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        store.append("beside", record(0))
        other = apsw.Connection(str(path))
        insert = "INSERT INTO entries (run_id, payload) VALUES ('run', ?)"
        for payload in payloads:
            other.execute(insert, (payload,))
        other.close()
        for name, arguments in {"load": (), "load_after": (-1, 10)}.items():
            with pytest.raises(StoreCorruptError) as corrupt:
                getattr(store, name)("run", *arguments)
            assert (corrupt.value.run_id, corrupt.value.position) == ("run", position)
        assert store.load("beside") == store.load_after("beside", -1, 10) == [record(0)]


def test_a_record_that_has_landed_blames_nobody(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db") as store:
        lease = store.acquire("run", "owner")
        for seq in (0, 1):
            store.append("run", record(seq), lease=lease)
        with pytest.raises(JournalOrderViolation, match="an earlier try has landed") as again:
            store.append("run", record(1), lease=lease)
        assert again.value.landed
        other = JournalRecord(seq=1, payload=b'{"seq":1,"other":1}')
        for stale in (other, record(0)):
            with pytest.raises(JournalOrderViolation, match="another writer") as violation:
                store.append("run", stale, lease=lease)
            assert not violation.value.landed


def test_every_field_of_a_row_round_trips(store: SqliteStore) -> None:
    meta = RunMeta(
        run_id="run",
        status="suspended",
        updated_at=WHEN,
        name="näme\x00",
        tags=("a", "\U0001f600"),
        workflow_name="w",
        workflow_hash="h",
        workflow_source_ref="run/source",
        segments=3,
        genesis="g",
        args_provided=False,
        args_hash="ah",
        hash_version_low=101,
        hash_version_high=102,
        wake_at=WHEN,
        parent_run_id="parent",
        extra=JsonMembers({"later": '{"b": 1,  "a":[1.50]}', "seq": "9"}),
    )
    store.put_meta(row("run"))
    store.put_meta(meta)
    assert store.get_meta("run") == meta
    assert store.list_runs() == [meta]
    assert store.get_meta("nobody") is None


def test_listings_filter_page_and_order(store: SqliteStore) -> None:
    names = ["A", "a", "b", "\u00e9", "\uffee", "\U0001f600"]
    for at, name in enumerate(reversed(names)):
        status = ("running", "ok", "error")[at % 3]
        tags = ("even", "all") if at % 2 == 0 else ("all",)
        store.put_meta(row(name, status, name=f"n{at % 2}", tags=tags))

    def ids(**wanted: object) -> list[str]:
        return [meta.run_id for meta in store.list_runs(RunFilter(**wanted))]  # type: ignore[arg-type]

    assert ids() == names
    assert ids(statuses=()) == []
    every = store.list_runs()
    either = [m.run_id for m in every if m.status in {"ok", "running"}]
    assert ids(statuses=("ok", "running", "ok")) == either
    assert ids(statuses=("ok", "error"), limit=2) == ids(statuses=("ok", "error"))[:2]
    assert ids(name="n0") == [m.run_id for m in every if m.name == "n0"]
    assert ids(tags=("even", "all")) == [m.run_id for m in every if "even" in m.tags]
    assert ids(tags=("even", "none")) == []
    assert ids(limit=2, after_run_id="b") == ["\u00e9", "\uffee"]
    assert ids(statuses=("nonsense",)) == []
    assert ids(name="n0", statuses=("running",), tags=("even",)) == [
        m.run_id for m in every if (m.name, m.status) == ("n0", "running")
    ]


def test_a_value_with_a_nul_is_found(store: SqliteStore) -> None:
    """Some JSON readers end a string at an escaped NUL; the filter must not."""
    store.put_meta(row("cut", name="a"))
    store.put_meta(row("whole", name="a\x00b", status="x\x00y"))
    assert [m.run_id for m in store.list_runs(RunFilter(name="a\x00b"))] == ["whole"]
    assert [m.run_id for m in store.list_runs(RunFilter(name="a"))] == ["cut"]
    assert [m.run_id for m in store.list_runs(RunFilter(statuses=("x\x00y",)))] == ["whole"]


def test_an_unreadable_row_is_left_out_and_a_page_is_still_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_PAGE", 2)
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        for name in ("b", "d", "f"):
            store.put_meta(row(name))
        damage = apsw.Connection(str(path))
        for name, payload in (
            ("a", '{"status": "running"}'),
            ("c", "[1]"),
            ("e", '{"status": 3, "updatedAt": "x"}'),
        ):
            damage.execute("INSERT INTO meta VALUES (?, ?)", (name, payload))
        damage.close()
        assert [m.run_id for m in store.list_runs(RunFilter(limit=3))] == ["b", "d", "f"]
        wanted = RunFilter(statuses=("running",), limit=3)
        assert [m.run_id for m in store.list_runs(wanted)] == ["b", "d", "f"]
        assert store.list_run_ids(None, 10) == ["a", "b", "c", "d", "e", "f"]
        for name in ("a", "c", "e"):
            with pytest.raises(StoreCorruptError) as corrupt:
                store.get_meta(name)
            assert corrupt.value.run_id == name
        assert store.get_meta("b") == row("b")


def test_a_listing_is_one_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that moves from one status to another while they are listed is not dropped."""
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store, SqliteStore(path) as other:
        store.put_meta(row("run", "running"))
        rows = reads._rows

        def then_move(
            connection: apsw.Connection, source: reads._Source, wanted: RunFilter
        ) -> list[RunMeta]:
            found = rows(connection, source, wanted)
            other.put_meta(row("run", "ok"))
            return found

        monkeypatch.setattr(reads, "_rows", then_move)
        both = store.list_runs(RunFilter(statuses=("ok", "running")))
        assert [m.run_id for m in both] == ["run"]


def test_delete_keeps_blobs_and_is_a_no_op_for_the_unknown(store: SqliteStore) -> None:
    twin = store.transcripts()
    store.append("run", record(0))
    store.put_meta(row("run"))
    lease = store.acquire("run", "owner")
    twin.put("run/blob", b"1", lease=lease)
    store.delete("nobody")
    store.delete("run", lease=lease)
    assert (store.load("run"), store.get_meta("run"), store.get_lease("run")) == ([], None, None)
    assert twin.get("run/blob") == b"1"
    assert store.list_run_ids(None, 10) == ["run"]
    store.append("run", record(0))
    store.delete_whole_run("run")
    assert (store.load("run"), twin.list_refs("run")) == ([], [])
    assert store.list_run_ids(None, 10) == []


def test_any_trace_of_a_run_is_in_the_inventory(store: SqliteStore) -> None:
    store.append("entries", record(0))
    store.append("entries", record(1))
    store.put_meta(row("meta"))
    store.acquire("lease", "owner")
    store.transcripts().put("blobs/1", b"")
    store.transcripts().put("blobs/2", b"")
    store.release(store.acquire("tombstone", "owner"))
    assert store.list_run_ids(None, 10) == ["blobs", "entries", "lease", "meta"]
    assert store.list_run_ids(None, 3) == ["blobs", "entries", "lease"]
    assert store.list_run_ids("entries", 3) == ["lease", "meta"]


def test_blobs_are_replaced_listed_by_run_and_measured(store: SqliteStore) -> None:
    twin = store.transcripts()
    refs = ["run/A", "run/a/b", "run/\uffee", "run/\U0001f600"]
    for ref in reversed(refs):
        twin.put(ref, b"first")
    twin.put("run-2/a", b"other")
    twin.put("run/A", b"\x00second\xff")
    assert twin.list_refs("run") == refs
    assert twin.list_refs("ru") == []
    assert twin.get("run/A") == b"\x00second\xff"
    assert twin.blob_info("run/A") == BlobStat(ref="run/A", size_bytes=8)
    assert twin.blob_info("run/none") is None
    twin.delete("run/A")
    twin.delete("run/A")
    assert twin.get("run/A") is None
    assert twin.list_refs("run") == refs[1:]
    twin.put("run/empty", b"")
    assert twin.get("run/empty") == b""


@pytest.mark.storm
def test_a_blob_of_256_mib_is_kept_and_one_byte_more_refused(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "runs.db", durability="normal") as store:
        twin = store.transcripts()
        blob = bytes(256 * 1024 * 1024)
        twin.put("run/large", blob)
        assert twin.blob_info("run/large") == BlobStat(ref="run/large", size_bytes=len(blob))
        found = twin.get("run/large")
        assert found is not None
        assert len(found) == len(blob)
        with pytest.raises(ConfigError):
            twin.put("run/larger", blob + b"x")


@pytest.mark.slow
def test_a_forgotten_answer_pins_no_log(tmp_path: Path) -> None:
    """Readers that keep what they read do not keep the log from starting over."""
    path = tmp_path / "runs.db"
    with SqliteStore(path, durability="normal") as store:
        kept: list[object] = []
        for seq in range(3_000):
            store.append("run", record(seq, '{"seq":%d,"pad":"' + "x" * 1_000 + '"}'))
            if seq % 500 == 0:
                kept.append(store.load("run"))
                kept.append(store.list_runs())
                kept.append(store.list_run_ids(None, 5))
        assert Path(f"{path}-wal").stat().st_size < 8 * 1024 * 1024
