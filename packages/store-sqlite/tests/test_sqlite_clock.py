"""A clock that gives no valid time is a typed error, and leaves nothing open."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.core.errors import StoreError
from rulvar.core.records import JournalRecord
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.core.clock import Clock


class OddClock:
    def __init__(self) -> None:
        self.says: object = 1_000

    def now_ms(self) -> int:
        if isinstance(self.says, Exception):
            raise self.says
        return cast("int", self.says)

    def monotonic_ms(self) -> int:
        return 0


@pytest.mark.parametrize(
    "odd", [1.5, "now", None, math.nan, -1, 2**63, True, OSError("no clock")], ids=repr
)
def test_an_odd_clock_changes_nothing_and_the_next_call_works(tmp_path: Path, odd: object) -> None:
    clock = OddClock()
    store = SqliteStore(tmp_path / "runs.db", clock=cast("Clock", clock))
    lease = store.acquire("run", "owner")
    clock.says = odd
    for call in (
        lambda: store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=lease),
        lambda: store.acquire("other", "owner"),
    ):
        with pytest.raises(StoreError, match="returned no valid time"):
            call()
    clock.says = 1_001
    assert list(store.load("run")) == []
    store.append("run", JournalRecord(seq=0, payload=b'{"seq":0}'), lease=lease)
    assert store.acquire("other", "owner").epoch == 1
    store.close()


def test_a_defect_in_one_mutation_costs_no_neighbour_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    leases = {name: store.acquire(name, "owner") for name in ("a", "b", "c", "bad")}
    judged = threading.Barrier(4)
    answers: dict[str, BaseException | None] = {}

    def defect(*_: object) -> None:
        message = "a slip"
        raise TypeError(message)

    monkeypatch.setattr("rulvar.stores.sqlite.store.mutations.renew", defect)

    def work(name: str) -> None:
        judged.wait()
        try:
            for seq in range(50):
                if name == "bad":
                    with pytest.raises(StoreError, match="TypeError"):
                        store.renew(leases[name])
                else:
                    payload = f'{{"seq":{seq}}}'.encode()
                    record = JournalRecord(seq=seq, payload=payload)
                    store.append(name, record, lease=leases[name])
            answers[name] = None
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            answers[name] = error

    crowd = [threading.Thread(target=work, args=(name,)) for name in leases]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert answers == dict.fromkeys(leases)
    assert {name: len(store.load(name)) for name in ("a", "b", "c")} == {"a": 50, "b": 50, "c": 50}
    store.close()
