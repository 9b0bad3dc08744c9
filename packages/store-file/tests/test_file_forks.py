"""A forked child opens nothing anew that its parent had open, and whatever else it likes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import RulvarError
from rulvar.core.records import JournalRecord
from rulvar.stores.file import FileJournalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(*calls: Callable[[], object], when: Callable[[], None] | None = None) -> list[str]:
    """What each call raises in a forked child, after the parent has done something."""
    go_on, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_on[1])
        os.read(go_on[0], 1)
        answers = []
        for call in calls:
            try:
                call()
                answers.append("done")
            except RulvarError as error:
                answers.append(f"{error.code}: {error}")
        os.write(told[1], "\n".join(answers).encode())
        os._exit(0)
    if when is not None:
        when()
    os.write(go_on[1], b"!")
    os.waitpid(child, 0)
    os.close(told[1])  # a child that was ended has written nothing
    answer = os.read(told[0], 65536).decode().split("\n")
    for each in (*go_on, told[0]):
        os.close(each)
    return answer


def use(root: Path, *, read_only: bool = False) -> None:
    with FileJournalStore(root, read_only=read_only) as store:
        if not read_only:
            store.append("child", JournalRecord(seq=0, payload=b'{"seq":0}'))


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["lives", "has closed"])
@pytest.mark.parametrize("read_only", [False, True])
def test_what_was_open_at_the_fork_is_refused(tmp_path: Path, parent: str, read_only: bool) -> None:
    root = tmp_path / "store"
    (tmp_path / "link").symlink_to(root)
    store = FileJournalStore(root)
    store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'))
    answers = in_child(
        lambda: use(root, read_only=read_only),
        lambda: use(tmp_path / "link", read_only=read_only),
        lambda: use(tmp_path / "another"),
        when=store.close if parent == "has closed" else None,
    )
    assert [each.split(":")[0] for each in answers] == ["store-forked", "store-forked", "done"]
    assert "close it before the fork" in answers[0]
    store.close()
    with FileJournalStore(root) as again:
        assert again.load("child") == []
        assert len(again.load("run")) == 1


@pytest.mark.slow
def test_a_grandchild_is_refused_too(tmp_path: Path) -> None:
    with FileJournalStore(tmp_path / "store"):
        answers = in_child(lambda: print_refusal(tmp_path / "store"))
    assert answers == ["done"]


def print_refusal(root: Path) -> None:
    assert in_child(lambda: use(root))[0].startswith("store-forked: ")


@pytest.mark.slow
def test_what_was_closed_before_the_fork_is_opened(tmp_path: Path) -> None:
    store = FileJournalStore(tmp_path / "store")
    store.close()
    assert in_child(lambda: use(tmp_path / "store")) == ["done"]
    FileJournalStore(tmp_path / "store").close()


@pytest.mark.slow
def test_the_parent_s_object_says_what_to_do(tmp_path: Path) -> None:
    with FileJournalStore(tmp_path / "store") as store:
        answer, *_ = in_child(lambda: store.load("run"))
        assert answer.startswith("store-forked: ")
        assert "start the child by spawn" in answer
        assert store.load("run") == []


@pytest.mark.slow
def test_a_child_waits_for_no_lock_that_a_thread_of_the_parent_held(tmp_path: Path) -> None:
    """Nothing in the child would ever release it."""
    with FileJournalStore(tmp_path / "store") as store:
        directory = store._directory
        with directory._stripe("run"), directory._lists:
            answers = in_child(
                lambda: signal.alarm(20),  # a child that waits ends here
                lambda: store.load("run"),
                lambda: store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}')),
                store.list_runs,
                store.close,
            )
    assert [each.split(":")[0] for each in answers] == ["done", *["store-forked"] * 4]
