"""Every id has a file name of its own, whatever the file system makes of names."""

from __future__ import annotations

import random
import unicodedata
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import StoreCorruptError
from rulvar.core.records import JournalRecord, RunMeta
from rulvar.stores.file import FileStores
from rulvar.stores.file.layout import Names, name_document
from rulvar.stores.file.names import LONGEST, decode_name, encode_name, is_digest_name
from rulvar.stores.file.testing import FaultyFileSystem

if TYPE_CHECKING:
    from pathlib import Path

AWKWARD = [
    "run",
    "RUN",
    "Run",
    "order-17",
    "con",
    "CON",
    "con.txt",
    "nul",
    "com1",
    "COM1",
    "lpt9.x",
    "aux",
    "...",
    ".hidden",
    "trailing.",
    "trailing ",
    " leading",
    "-rf",
    "a:b",
    "a\\b",
    "a*b?c<d>e|f\"g'h",
    "100%",
    "%41",
    "%2e%2e",
    "a%2fb",
    "~",
    "$MFT",
    "é",
    "e\u0301",
    "\u212b",
    "\u00c5",
    "ß",
    "ss",
    "\u017f",
    "s",
    "İ",
    "i",
    "\u1e9e",
    "\ufb01",
    "fi",
    "😀",
    "\U0010ffff",
    "\u200b",
    "a" * 100,
    "a" * 101,
    "a" * 200,
    "a" * 199 + "b",
    "A" * 200,
    "é" * 200,
    "😀" * 200,
    "." * 200,
    "%" * 200,
]


def folded(name: str) -> str:
    """The coarsest view that a file system takes of a name: case and normal form gone."""
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())


def drawn(count: int) -> list[str]:
    source = random.Random(7)
    alphabet = "aA0._-% é\u0301\u017fİ😀$~\\:COMNUL1"
    return [
        text
        for _ in range(count)
        if (text := "".join(source.choices(alphabet, k=source.randint(1, 60)))) not in {".", ".."}
    ]


def test_names_are_apart_plain_short_and_reversible() -> None:
    ids = sorted({*AWKWARD, *drawn(3000)})
    names = [encode_name(run_id) for run_id in ids]
    assert len({folded(name) for name in names}) == len(ids)
    for run_id, name in zip(ids, names, strict=True):
        assert len(name) <= LONGEST
        assert name.isascii()
        assert name == name.lower()
        assert name[0] not in ".-"
        assert name[-1] not in ". "
        assert not set(name) & set('/\\:*?"<>| ')
        stem = name.split(".")[0]
        assert stem not in {"con", "prn", "aux", "nul"}
        assert not (stem[:3] in {"com", "lpt"} and stem[3:].isdigit() and len(stem) == 4)
        if is_digest_name(name) is None:
            assert decode_name(name) == run_id
        else:
            assert decode_name(name) is None


def test_plain_ids_read_as_they_are() -> None:
    assert encode_name("order-17_b.2") == "order-17_b.2"
    assert encode_name("turns/000001.json") == "turns%2f000001.json"


@pytest.mark.parametrize(
    "name", ["", "A", "%4", "%zz", "%61", "a.", ".a", "con", "%ff", "a b", "x%-y", "a" * 101, "%2F"]
)
def test_a_name_that_this_store_never_wrote_stands_for_nothing(name: str) -> None:
    assert decode_name(name) is None


def test_every_awkward_id_is_a_run_of_its_own(tmp_path: Path) -> None:
    allowed = [run_id for run_id in AWKWARD if run_id not in {".", ".."}]
    with FileStores(tmp_path / "store", filesystem=FaultyFileSystem()) as stores:
        for number, run_id in enumerate(allowed):
            record = JournalRecord(seq=number, payload=b'{"seq":%d}' % number)
            stores.journal.append(run_id, record)
            stores.journal.put_meta(RunMeta(run_id=run_id, status="ok", updated_at=str(number)))
            stores.transcripts.put(f"{run_id}/{run_id}/x", run_id.encode())
    with FileStores(tmp_path / "store", read_only=True) as stores:
        for number, run_id in enumerate(allowed):
            assert [record.seq for record in stores.journal.load(run_id)] == [number]
            assert stores.transcripts.list_refs(run_id) == [f"{run_id}/{run_id}/x"]
            assert stores.transcripts.get(f"{run_id}/{run_id}/x") == run_id.encode()
        rows = stores.journal.list_runs()
        assert [row.run_id for row in rows] == sorted(allowed, key=lambda each: each.encode())
        assert {row.run_id: row.updated_at for row in rows} == {
            run_id: str(number) for number, run_id in enumerate(allowed)
        }


def test_the_longest_ref_fits(tmp_path: Path) -> None:
    ref = "r" * 200 + "/" + "/".join(["é" * 159] * 5)
    assert len(ref) == 1000
    with FileStores(tmp_path / "store") as stores:
        stores.transcripts.put(ref, b"blob")
        assert stores.transcripts.list_refs("r" * 200) == [ref]
        assert stores.transcripts.get(ref) == b"blob"


def test_a_shortened_name_whose_meaning_is_lost_or_forged_stands_for_nothing(
    tmp_path: Path,
) -> None:
    run_id, other = "a" * 200, "b" * 200
    root = tmp_path / "store"
    with FileStores(root) as stores:
        stores.transcripts.put(f"{run_id}/x", b"blob")
    (file,) = (root / "names").iterdir()
    file.write_bytes(name_document(other))
    with FileStores(root) as stores:
        assert stores.transcripts.get(f"{run_id}/x") == b"blob"
        journal = stores.journal
        assert (
            Names(FaultyFileSystem(), journal._directory.layout).text_of(  # type: ignore[attr-defined]
                encode_name(run_id)
            )
            is None
        )
        assert list(journal.list_run_ids(None, 9)) == []  # type: ignore[attr-defined]
        stores.transcripts.put(f"{run_id}/x", b"newer")  # and puts the meaning right again
    assert file.read_bytes() == name_document(run_id)


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()
    }


def test_nothing_leaves_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b'{"seq":0}\n')
    before = tree(outside)
    root = tmp_path / "store"
    FileStores(root).close()
    (root / "journals" / "linked.jsonl").symlink_to(outside / "precious")
    (root / "journals" / "dangling.jsonl").symlink_to(outside / "new")
    (root / "rows" / "linked.json").symlink_to(outside / "precious")
    (root / "blobs" / "linked").symlink_to(outside)
    with FileStores(root) as stores:
        record = JournalRecord(seq=5, payload=b'{"seq":5}')
        for run_id in ("linked", "dangling"):
            with pytest.raises(StoreCorruptError, match="symbolic link"):
                stores.journal.append(run_id, record)
        with pytest.raises(StoreCorruptError, match="symbolic link"):
            stores.journal.load("linked")
        with pytest.raises(StoreCorruptError, match="symbolic link"):
            stores.transcripts.put("linked/new", b"blob")
        with pytest.raises(StoreCorruptError, match="symbolic link"):
            stores.transcripts.get("linked/precious")
        with pytest.raises(StoreCorruptError, match="symbolic link"):
            stores.transcripts.list_refs("linked")
        assert stores.transcripts.blob_info("other/precious") is None  # type: ignore[attr-defined]
        stores.journal.put_meta(RunMeta(run_id="linked", status="ok", updated_at="now"))
        stores.journal.delete_whole_run("linked")  # type: ignore[attr-defined]
        assert not (root / "blobs" / "linked").is_symlink()
    assert tree(outside) == before


def test_a_folder_of_the_store_that_is_a_link_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    FileStores(root).close()
    (root / "journals").rename(tmp_path / "elsewhere")
    (root / "journals").symlink_to(tmp_path / "elsewhere")
    for read_only in (False, True):
        with pytest.raises(StoreCorruptError, match="is a link"):
            FileStores(root, read_only=read_only)
