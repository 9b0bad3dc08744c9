"""What the store makes is its user's alone, whatever the umask; what is there stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.errors import ConfigError
from rulvar.stores.file import FileJournalStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")

WORK = """
import os, sys
from rulvar.core import open_stores
from rulvar.core.records import JournalRecord, RunMeta

os.umask(int(sys.argv[1], 8))
with open_stores(sys.argv[2]) as stores:
    for run_id in ("run", "long" * 40):
        stores.journal.append(run_id, JournalRecord(seq=0, payload=b'{"seq":0}'))
        stores.journal.put_meta(RunMeta(run_id=run_id, status="ok", updated_at="2024"))
        stores.transcripts.put(f"{run_id}/blob", b"secret")
"""


def work(umask: str, url: str) -> None:
    """A process of its own: the umask is the process's."""
    subprocess.run([sys.executable, "-c", WORK, umask, url], check=True)


def modes(root: Path) -> tuple[set[int], set[int]]:
    """The modes of the folders and of the files below a root."""
    every = [root, *root.rglob("*")]
    return (
        {each.stat().st_mode & 0o7777 for each in every if each.is_dir()},
        {each.stat().st_mode & 0o7777 for each in every if each.is_file()},
    )


@pytest.mark.slow
@pytest.mark.parametrize("umask", ["000", "022", "077", "277"])
def test_what_is_made_is_its_user_s_alone(tmp_path: Path, umask: str) -> None:
    work(umask, f"file:///{tmp_path}/store")
    assert modes(tmp_path / "store") == ({0o700}, {0o600})


@pytest.mark.slow
def test_told_otherwise_the_umask_decides(tmp_path: Path) -> None:
    work("027", f"file:///{tmp_path}/store?permissions=umask")
    assert modes(tmp_path / "store") == ({0o750}, {0o640})


@pytest.mark.slow
def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    root = tmp_path / "store"
    work("022", f"file:///{root}?permissions=umask")
    journal = root / "journals" / "run.jsonl"
    with FileJournalStore(root) as store:
        store.append("run", type(store.load("run")[0])(seq=1, payload=b'{"seq":1}'))
    assert journal.stat().st_mode & 0o777 == 0o644
    assert (root / "writer.lock").stat().st_mode & 0o777 == 0o644
    assert root.stat().st_mode & 0o777 == 0o755


def test_another_word_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="permissions"):
        open_stores(f"file:///{tmp_path}/store?permissions=0644")
    with pytest.raises(ConfigError, match="permissions"):
        FileJournalStore(tmp_path / "store", permissions="0644")  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()
