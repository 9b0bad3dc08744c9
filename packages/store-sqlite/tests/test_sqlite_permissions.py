"""New databases are their user's alone, and what a user may not do is said exactly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rulvar.core import open_stores
from rulvar.core.errors import ConfigError
from rulvar.stores.sqlite import SqliteStore, os_checks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")

WORK = """
import os, sys
from pathlib import Path
from rulvar.core import open_stores
from rulvar.core.records import JournalRecord

os.umask(int(sys.argv[1], 8))
with open_stores(sys.argv[2]) as stores:
    stores.journal.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
    folder = Path(sys.argv[3])
    print(*sorted({oct(each.stat().st_mode & 0o7777) for each in folder.iterdir()}))
    print(*sorted(each.name for each in folder.iterdir()))
"""


def modes(umask: str, folder: Path, options: str = "") -> str:
    """The modes of the database, its log and its index; the umask is the process's own."""
    url = f"sqlite:///{folder}/runs.db{options}"
    done = subprocess.run(
        [sys.executable, "-c", WORK, umask, url, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, names = done.stdout.splitlines()
    assert names == "runs.db runs.db-shm runs.db-wal"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("umask", ["000", "022", "077", "277"])
def test_what_is_made_is_its_user_s_alone(tmp_path: Path, umask: str) -> None:
    assert modes(umask, tmp_path) == "0o600"


@pytest.mark.slow
def test_told_otherwise_the_umask_decides(tmp_path: Path) -> None:
    assert modes("027", tmp_path, "?permissions=umask") == "0o640"


@pytest.mark.slow
def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    (tmp_path / "runs.db").chmod(0o644)
    assert modes("077", tmp_path) == "0o644"


def test_without_mknod_a_file_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "mknod", raising=False)
    os_checks.make_private(str(tmp_path / "a.db"))
    assert (tmp_path / "a.db").stat().st_mode & 0o7777 == 0o600
    os_checks.make_private(str(tmp_path / "a.db"))
    os_checks.make_private(str(tmp_path / "no folder" / "a.db"))


def test_another_word_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="permissions"):
        open_stores(f"sqlite:///{tmp_path}/runs.db?permissions=0644")
    with pytest.raises(ConfigError, match="permissions"):
        SqliteStore(tmp_path / "runs.db", permissions="0644")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# --- a user who may only look ---------------------------------------------------------------

LOOK = """
import os, sys
from rulvar.core.errors import RulvarError
from rulvar.stores.sqlite import SqliteStore

os.setuid(65534)
try:
    with SqliteStore(sys.argv[1], read_only=sys.argv[2] == "look") as store:
        if sys.argv[2] == "write":
            store.acquire("another run", "nobody")
        print("ok", *store.list_run_ids(None, 5))
except RulvarError as error:
    print(error)
"""


def as_nobody(path: Path, how: str = "look") -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(path), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A database that everybody may read, in a folder that everybody may enter."""
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    path = folder / "runs.db"
    path.touch()
    path.chmod(0o644)
    with SqliteStore(path) as store:
        store.acquire("run", "owner")
    yield path
    shutil.rmtree(folder)


@pytest.mark.slow
def test_who_may_only_read_looks_while_the_owner_has_it_open(shared: Path) -> None:
    with SqliteStore(shared):
        assert as_nobody(shared) == "ok run"
        told = as_nobody(shared, "write")
    assert f"read and not write {shared}" in told
    assert "looking with read_only works" in told


@pytest.mark.slow
def test_what_is_missing_is_said(shared: Path) -> None:
    told = as_nobody(shared)
    assert "for writing" not in told
    assert f"let this user write the folder {shared.parent}" in told
    shared.parent.chmod(0o777)
    shared.chmod(0o600)
    assert f"this user may not read {shared}" in as_nobody(shared)
    shared.parent.chmod(0o700)
    assert f"this user may not enter the folder {shared.parent}" in as_nobody(shared)


@pytest.mark.slow
def test_a_log_that_may_not_be_read_is_named(shared: Path) -> None:
    with SqliteStore(shared):
        Path(f"{shared}-wal").chmod(0o600)
        assert f"this user may not read {shared}-wal" in as_nobody(shared)


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from rulvar.core.errors import StoreError
from rulvar.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for call in (lambda: SqliteStore(sys.argv[1] + "2"), lambda: store.load("run")):
    try:
        call()
    except StoreError as error:
        print("no file descriptor left" in str(error))
"""


@pytest.mark.slow
def test_running_out_of_descriptors_is_told_as_that(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path / "runs.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
