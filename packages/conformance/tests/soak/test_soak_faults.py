"""When a stop is over: by its time, by a takeover, or because it holds everybody up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from rulvar.conformance.soak import CI, faults
from rulvar.conformance.soak.faults import Faults
from rulvar.conformance.soak.history import Recorder, parse_event, read_history
from rulvar.conformance.soak.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from rulvar.conformance.soak.processes import WorkerProcess

MS = 1_000_000


class StopNotice:
    said = False

    def heard(self) -> bool:
        said, self.said = self.said, False
        return said


class Puppet:
    """A contestant without a process."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.life = 1
        self.frozen = False
        self.ended = False
        self.notice = StopNotice()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False

    def kill(self) -> None:
        self.ended = True

    def wait(self, seconds: float) -> bool:
        assert seconds <= 0.2
        return self.ended


class Scene:
    """Three workers, two background, and a clock that stands still until it is told."""

    def __init__(self, folder: Path) -> None:
        self.now = 10_000 * MS
        self.folder = folder
        self.progress = Progress()
        self.puppets = [Puppet(number) for number in range(1, 6)]
        who = cast("list[WorkerProcess]", self.puppets)
        self.recorder = Recorder(folder, 0, 1)
        self.faults = Faults(CI, self.recorder, self.progress, who[:3], who[3:])
        self.numbers = dict.fromkeys(range(1, 4), 0)
        for number in self.numbers:
            self.through(number)
        self.faults._next_stop = self.faults._next_kill = 1 << 62

    def take(self, event: dict[str, object]) -> None:
        self.progress.take(parse_event(json.dumps(event).encode()))

    def event(self, process: int, **more: object) -> str:
        self.numbers[process] += 1
        name = f"{process}.1.{self.numbers[process]}"
        self.take(
            {
                "invoked": name,
                "at": self.now,
                "op": "append",
                "run": "r",
                "target": "",
                "lease": None,
                "content": "",
                "death": "",
            }
            | more
        )
        return name

    def through(self, process: int, name: str | None = None) -> None:
        """Let a call end that the store had to be asked for."""
        name = self.event(process) if name is None else name
        self.take({"returned": name, "at": self.now, "outcome": "landed"})

    def grant(self, process: int, epoch: int) -> None:
        name = self.event(process, op="acquire", target=f"w{process}")
        answer = {"returned": name, "at": self.now, "outcome": "landed", "granted": epoch}
        self.take(answer)

    def look(self, process: int, epoch: int) -> None:
        lease = ["r", f"w{process}", epoch]
        nothing: dict[str, object] = {"journal": [], "row": None, "blobs": {}}
        self.take({"seen": "r", "at": self.now, "lease": lease} | nothing)

    def trap(self, process: int) -> Puppet:
        who = self.puppets[process - 1]
        who.notice.said = True
        self.faults.note_self_stops()
        assert who.frozen
        return who

    def turn(self, after_ms: float) -> list[int]:
        self.now += int(after_ms * MS)
        over = self.faults.turn()
        for who in over:
            who.thaw()
            self.faults.thawed(who)
        return [who.process for who in over]

    def reported(self) -> list[tuple[str, int]]:
        return sorted((each.kind, each.process) for each in read_history(self.folder).faults)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made: list[Scene] = []
    monkeypatch.setattr(faults, "now", lambda: made[0].now if made else 0)
    made.append(Scene(tmp_path))
    return made[0]


def test_a_stop_inside_a_commit_is_recognized_and_ended_at_once(scene: Scene) -> None:
    scene.trap(1)
    waiting = [scene.event(number) for number in (2, 3)]
    assert scene.turn(5) == []
    assert scene.turn(20) == [1]
    assert scene.reported() == [("self-stopped", 1)]
    for number, name in zip((2, 3), waiting, strict=True):
        scene.through(number, name)
    scene.turn(1)
    assert scene.reported() == [("self-stopped", 1), ("stopped-in-commit", 1)]


def test_what_others_wait_for_all_the_same_was_no_stop_inside_a_commit(scene: Scene) -> None:
    scene.trap(1)
    for number in (2, 3):
        scene.event(number)
    assert scene.turn(25) == [1]
    scene.turn(100)
    scene.through(2)
    scene.turn(1)
    assert scene.reported() == [("self-stopped", 1)]


def test_a_stop_lasts_while_anybody_else_goes_through(scene: Scene) -> None:
    scene.trap(1)
    scene.event(2)
    for _ in range(4):
        scene.through(3)
        assert scene.turn(20) == []


def test_a_hunted_process_goes_on_when_its_run_was_taken_and_looked_at(scene: Scene) -> None:
    scene.grant(1, 1)
    scene.event(1, lease=["r", "w1", 1])
    scene.trap(1)
    assert scene.turn(4) == []
    assert list(scene.faults.targets) == ["r"]
    scene.grant(2, 2)
    assert scene.turn(4) == []
    scene.look(2, 2)
    assert scene.turn(4) == [1]
    assert list(scene.faults.targets) == []


def test_a_stop_ends_by_its_time_whatever_happens(scene: Scene) -> None:
    scene.trap(1)
    scene.through(2)
    assert scene.turn(2 * CI.lease_ttl_ms) == [1]
    began, ended = scene.faults.frozen["1"]
    assert ended - began == 2 * CI.lease_ttl_ms * MS


def test_enough_others_are_left_to_take_over(scene: Scene) -> None:
    assert scene.faults.self_stops
    scene.trap(1)
    assert not scene.faults.self_stops


def test_the_same_seed_stops_the_same_processes_for_the_same_times(tmp_path: Path) -> None:
    def chosen(folder: Path, seed: int) -> list[tuple[int, int]]:
        folder.mkdir()
        scene = Scene(folder)
        scene.faults = Faults(
            replace(CI, seed=seed),
            scene.recorder,
            scene.progress,
            cast("list[WorkerProcess]", scene.puppets[:3]),
            cast("list[WorkerProcess]", scene.puppets[3:]),
        )
        found = []
        for _ in range(40):
            scene.faults._stop(0)
            found += [(each.who.process, each.until - each.began) for each in scene.faults._frozen]
            for each in scene.faults.end():
                each.thaw()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "now", lambda: 0)
        first, again = chosen(tmp_path / "a", 7), chosen(tmp_path / "b", 7)
        assert first == again
        assert len(first) >= 30
        assert chosen(tmp_path / "c", 8) != first


def test_one_that_a_trap_stops_when_all_is_over_is_let_go_on_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, hangs = scene.puppets[:2]
    thawed: list[int] = []

    def thaw() -> None:
        # It has ended by itself at the second time: the trap has closed after the first.
        thawed.append(late.process)
        late.ended = len(thawed) == 2

    monkeypatch.setattr(late, "thaw", thaw)
    workers = cast("list[WorkerProcess]", scene.puppets)
    assert scene.faults.wait_for(workers[0], 60.0)
    assert thawed == [1, 1]
    assert not scene.faults.wait_for(workers[1], 0.05)
    assert not hangs.ended
