"""The stage of the takeover tests: worker processes, one SQLite file, and what one sees of it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rulvar.core import Lease, LeaseHeldError, StoreBusyError
from rulvar.core.journal import read_journal
from rulvar.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rulvar.core.journal import JournalEntry
    from rulvar.core.spi import LeaseInfo

__all__ = ["Player", "Stage", "freeze_outside_a_commit"]

_PATIENCE_SECONDS = 60
_PROCESS = Path(__file__).with_name("takeover_process.py")

Report = dict[str, Any]


class Player:
    """One worker process."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._reports: queue.Queue[Report] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(_PROCESS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.put(json.loads(line))
        self._reports.put({"kind": "gone"})

    def hear(self, kind: str) -> Report:
        """Wait for the next report, which must be of this kind."""
        told = self._reports.get(timeout=_PATIENCE_SECONDS)
        assert told["kind"] == kind, f"{self.name} was to report {kind!r}: {told}"
        return told

    def hear_any(self) -> Report:
        """Wait for the next report."""
        return self._reports.get(timeout=_PATIENCE_SECONDS)

    def silent(self) -> bool:
        """Whether it has reported nothing that was not heard."""
        return self._reports.empty()

    def go(self) -> None:
        """Answer the read in which it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def freeze(self) -> None:
        """Stop it where it stands; return when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{self.name} has ended: {status}"

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash does; return when it is gone."""
        self._process.kill()
        assert self._process.wait(_PATIENCE_SECONDS) == -signal.SIGKILL

    def finish(self) -> None:
        """Wait until it has ended by itself, and well."""
        assert self._process.wait(_PATIENCE_SECONDS) == 0, self.name

    def put_away(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class Stage:
    """One SQLite file, the processes that play on it, and a store to look at it with."""

    def __init__(self, folder: Path, *, lease_ttl_ms: int) -> None:
        self.lease_ttl_ms = lease_ttl_ms
        self.log = folder / "side-effects.log"
        self._path = folder / "runs.db"
        self._players: list[Player] = []
        self.store = SqliteStore(self._path, lease_ttl_ms=lease_ttl_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for player in self._players:
            player.put_away()
        self.store.close()

    def player(
        self,
        name: str,
        role: str,
        *,
        run_id: str,
        args: object = None,
        workflow: str = "errands",
        pause_in: str | None = None,
    ) -> Player:
        """Start a process, which is ready and waits for its `Player.go` when this returns."""
        url = f"sqlite:///{self._path}?lease_ttl_ms={self.lease_ttl_ms}"
        arguments = [role, "--store", url, "--run", run_id, "--owner", name]
        arguments += ["--workflow", workflow, "--args", json.dumps(args)]
        if pause_in is not None:
            arguments += ["--pause-in", pause_in]
        player = Player(name, arguments)
        self._players.append(player)
        player.hear("ready")
        return player

    def errands(self, *names: str) -> dict[str, object]:
        """Return the arguments of the workflow that leaves a trace of each errand."""
        return {"log": str(self.log), "names": list(names)}

    def traces(self) -> list[str]:
        """Return the side effects so far, in their order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def entries(self, run_id: str) -> list[JournalEntry]:
        return read_journal(run_id, self.store.load(run_id))

    def lease(self, run_id: str) -> LeaseInfo:
        found = self.store.get_lease(run_id)
        assert found is not None, f"nobody has {run_id!r}"
        return found

    def until_lease_is_over(self, run_id: str) -> None:
        """Wait for the store to say that the present lease has run out."""
        self.until(lambda: not self.lease(run_id).live, f"the lease of {run_id!r} runs out")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Ask again and again until it holds."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < give_up_at, f"waited in vain until {what}"
            time.sleep(0.01)


def freeze_outside_a_commit(stage: Stage, player: Player) -> None:
    """Freeze a process that does not have the file locked; it must be free to be taken over."""
    nobody = Lease(run_id="nobody-s", owner="nobody", epoch=2**53 - 1)
    while True:
        player.freeze()
        try:
            stage.store.renew(nobody)
        except LeaseHeldError:
            return
        except StoreBusyError:
            player.thaw()  # inside a commit, of a renewal; try again
