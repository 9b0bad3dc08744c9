"""A forked child opens nothing anew that its parent had open; whatever else, it may."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rulvar.core.errors import RulvarError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]


def record(seq: int) -> JournalRecord:
    return JournalRecord(seq=seq, payload=b'{"seq":%d}' % seq)


def use(path: Path | str, *, read_only: bool = False) -> None:
    with SqliteStore(path, read_only=read_only) as store:
        store.load("child")
        if not read_only:
            store.delete("child")
            store.append("child", record(0))


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except RulvarError as error:
        return f"{error.code}: {error}"
    return "done"


def in_child(
    *calls: Callable[[], object],
    when: Callable[[], None] | None = None,
    fork: Callable[[], int] = os.fork,
) -> list[str]:
    """What each call raises in a forked child, after the parent has done something."""
    go_on, told = os.pipe(), os.pipe()
    child = fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is a failure, not a test that never ends
        os.close(go_on[1])
        os.read(go_on[0], 1)
        os.write(told[1], "\n".join(map(outcome, calls)).encode())
        os._exit(0)
    if when is not None:
        when()
    os.write(go_on[1], b"!")
    os.close(told[1])
    _, status = os.waitpid(child, 0)
    answer = os.read(told[0], 65536).decode()
    for each in (*go_on, told[0]):
        os.close(each)
    assert status == 0, "the child hung or died"
    return answer.split("\n")


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["lives", "has closed"])
@pytest.mark.parametrize("read_only", [False, True])
def test_what_was_open_at_the_fork_is_refused(
    tmp_path: Path, parent: str, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "other-name.db").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(path)
    store.append("run", record(0))
    answers = in_child(
        lambda: use(path, read_only=read_only),
        lambda: use("runs.db", read_only=read_only),
        lambda: use(tmp_path / "link" / "runs.db", read_only=read_only),
        lambda: use(tmp_path / "other-name.db", read_only=read_only),
        lambda: use(tmp_path / "another.db"),
        lambda: use(":memory:"),
        when=store.close if parent == "has closed" else None,
    )
    assert [each.split(":")[0] for each in answers] == ["store-forked"] * 4 + ["done"] * 2
    assert f"close the store before the fork and open {path}" in answers[0]
    store.close()
    with SqliteStore(path) as again:
        assert again.load("child") == []
        assert again.load("run") == [record(0)]


@pytest.mark.slow
def test_what_was_closed_before_the_fork_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    first, second = SqliteStore(path), SqliteStore(path)
    first.load("run")
    first.close()
    answers = in_child(lambda: use(path))
    assert answers[0].startswith("store-forked: ")  # one of the two is still open
    second.close()
    assert in_child(lambda: use(path)) == ["done"]
    with SqliteStore(path) as again:
        assert again.load("child") == [record(0)]


@pytest.mark.slow
def test_a_store_that_was_dropped_before_the_fork_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    SqliteStore(path).load("run")
    assert in_child(lambda: use(path)) == ["done"]


@pytest.mark.slow
def test_a_fork_of_a_fork_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def grandchild() -> None:
        use(tmp_path / "its-own.db")
        own = SqliteStore(tmp_path / "its-own.db")
        for each in (path, tmp_path / "its-own.db"):
            assert in_child(lambda each=each: use(each))[0].startswith("store-forked: ")  # type: ignore[misc]
        own.close()
        assert in_child(lambda: use(tmp_path / "its-own.db")) == ["done"]

    with SqliteStore(path):
        assert in_child(grandchild) == ["done"]


def test_a_fork_past_python_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    libc = ctypes.PyDLL(None)  # the hooks that Python runs around a fork do not run
    with SqliteStore(path) as store:
        store.append("run", record(0))
        answers = in_child(
            lambda: use(path), lambda: store.load("run"), fork=lambda: int(libc.fork())
        )
    assert [each.split(":")[0] for each in answers] == ["store-forked"] * 2


@pytest.mark.slow
def test_what_another_library_had_open_at_the_fork_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    use(path)
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM entries").fetchall()
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell what is open")
    assert in_child(lambda: use(path))[0].startswith("store-forked: ")
    other.close()
    assert in_child(lambda: use(path)) == ["done"]


@pytest.mark.slow
def test_the_store_of_the_parent_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store, SqliteStore(":memory:") as memory:
        told, of_memory = in_child(lambda: store.load("run"), lambda: memory.load("run"))
    assert told.startswith("store-forked: ")
    assert f"close the store before the fork and open {path} in each process" in told
    assert "spawn" in told
    assert of_memory.startswith("store-forked: ")
    assert "open another one here" in of_memory


def _worker(path: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    answers.put(outcome(lambda: use(path)).split(":")[0])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "answer"), [("fork", "store-forked"), ("spawn", "done")])
def test_processes_of_multiprocessing(tmp_path: Path, method: str, answer: str) -> None:
    path = tmp_path / "runs.db"
    context: Any = multiprocessing.get_context(method)
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    with SqliteStore(path):
        process = context.Process(target=_worker, args=(str(path), answers))
        process.start()
        assert answers.get() == answer
        process.join(60)
    assert process.exitcode == 0


DAEMON = """
import os, sys
from rulvar.core.errors import StoreForkedError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

path, closed_first, told = sys.argv[1], sys.argv[2] == "closed", int(sys.argv[3])
store = SqliteStore(path)
store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
if closed_first:
    store.close()
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(3, told)  # as daemons do; what SQLite knows of them stays
os.closerange(told + 1, 256)
try:
    with SqliteStore(path) as mine:
        mine.append("run", JournalRecord(seq=1, payload=b'{"seq":1}'))
    os.write(told, b"opened")
except StoreForkedError:
    os.write(told, b"refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("parent", "answer"), [("open", b"refused"), ("closed", b"opened")])
def test_a_daemon_opens_what_its_parent_had_closed(
    tmp_path: Path, parent: str, answer: bytes
) -> None:
    path = tmp_path / "runs.db"
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-c", DAEMON, str(path), parent, str(write)],
        pass_fds=(write,),
        check=True,
        timeout=60,
    )
    os.close(write)
    assert os.read(read, 100) == answer
    os.close(read)
    with SqliteStore(path) as store:
        assert len(store.load("run")) == (2 if parent == "closed" else 1)


@pytest.mark.storm
def test_a_fork_in_the_middle_of_commits_leaves_no_child_that_hangs(tmp_path: Path) -> None:
    """Without the wait before a fork, one child in twenty waits for a mutex for ever."""
    path = tmp_path / "runs.db"
    over = threading.Event()
    with SqliteStore(path) as store:

        def commit(run_id: str) -> None:
            seq = 0
            while not over.is_set():
                store.append(run_id, record(seq))
                store.load_after(run_id, max(-1, seq - 5), 10)
                seq += 1

        callers = [threading.Thread(target=commit, args=(f"run-{at}",)) for at in range(6)]
        for caller in callers:
            caller.start()
        try:
            for at in range(150):
                answers = in_child(
                    lambda: use(path),
                    lambda at=at: use(tmp_path / f"{at}.db"),  # type: ignore[misc]
                )
                assert [each.split(":")[0] for each in answers] == ["store-forked", "done"]
        finally:
            over.set()
            for caller in callers:
                caller.join()
