"""See a run survive its worker, with real processes and one SQLite file.

Worker A owns a run and is frozen in the middle of a step. Its lease runs out, worker B takes
over and finishes. Then A wakes up and tries to go on: the store refuses every write it makes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

import workflow
from processes import Cast, Child, Report, StoryError
from rulvar.core import (
    Lease,
    LeaseHeldError,
    RulvarError,
    StoreBusyError,
    assert_fenced_writes,
    open_stores,
)
from rulvar.core.ids import SystemIds
from rulvar.core.journal import read_journal
from rulvar.core.spi import LeaseAdmin, has_lease_admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.core.journal import JournalEntry
    from rulvar.core.spi import FencedStores, LeaseInfo

__all__ = ["main"]

_DUMP = Path(__file__).with_name("canonical_dump.py")
_EVERY_MUTATION = (
    "append", "put_meta", "put_blob", "delete_blob", "renew", "release", "delete",
)  # fmt: skip
_US = "quickstart"


@dataclass
class Account:
    """What is told as it happens, and what is held against the promises at the end."""

    began: float = field(default_factory=time.monotonic)
    failed: list[str] = field(default_factory=list)

    def say(self, who: str, what: str) -> None:
        """Tell one thing, with the seconds since the beginning."""
        print(f"{time.monotonic() - self.began:6.2f} s  {who:<10}  {what}", flush=True)

    def check(self, holds: bool, what: str, otherwise: str = "") -> None:
        """Hold one promise against what happened."""
        print(f"  {'ok    ' if holds else 'FAILED'}  {what}", flush=True)
        if not holds:
            self.failed.append(f"{what}{': ' if otherwise else ''}{otherwise}")

    def hear(self, child: Child, told: Report) -> None:
        """Tell what a worker has reported, where it is worth a line."""
        if told["kind"] == "lease.granted":
            self.say(child.name, f"owns the run under epoch {told['epoch']}")
        elif told["kind"] == "lease.reacquired":
            self.say(child.name, f"slept past its lease, nobody came: epoch {told['epoch']} now")
        elif told["kind"] == "attempt":
            self.say(child.name, f"{told['mutation']:<16}  {_answer(told)}")


def _answer(told: Report) -> str:
    if not told["refused"]:
        return f"NOT REFUSED: {told['answer']}"
    now = "nobody holds the run"
    if told["holder"] is not None:
        now = f"{told['holder']} holds epoch {told['epoch']}"
    return f"LeaseHeldError: {told['reason']} ({now})"


class Story:
    """The scenes, in order; each leaves what the checks need."""

    def __init__(
        self, account: Account, cast: Cast, stores: FencedStores, options: argparse.Namespace
    ) -> None:
        if not has_lease_admin(stores.journal):
            message = "the store does not show its leases: nothing could be told"
            raise StoryError(message)
        self.leases: LeaseAdmin = stores.journal
        self.account = account
        self.cast = cast
        self.stores = stores
        self.options = options
        self.run_id = f"quickstart-{SystemIds().token()[:8]}"
        self.patience_seconds = 20 + 3 * options.lease_ttl_ms / 1000
        self.attempts: dict[str, Report] = {}

    # --- scenes -----------------------------------------------------------------------------

    def freeze_a(self) -> None:
        """Start worker A and stop it in the middle of the middle file's step."""
        names = workflow.list_files(self.options.wanted)
        chosen = names[len(names) // 2]
        self.a = self._start("worker A", "own", "--pause-in", chosen)
        self.half_read = self.cast.wait_for(self.a, "half-read")
        at = f"{chosen} (file {names.index(chosen) + 1} of {len(names)})"
        self.account.say("worker A", f"has read the first half of {at}")
        while not self._frozen_outside_a_commit():
            self.account.say(_US, "the freeze landed inside a commit: thawed, to try again")
        self.done_by_a = sum(1 for entry in self._steps() if entry.status == "ok")
        self.account.say(
            _US,
            f"freezes A (SIGSTOP) in that step, with {self.done_by_a} steps journalled before it",
        )

    def _frozen_outside_a_commit(self) -> bool:
        """Freeze A, and thaw it again if that left the file locked for everybody."""
        self.a.freeze()
        if self._may_write():
            return True
        self.a.thaw()
        self._until("the file is free again", self._may_write)
        return False

    def _may_write(self) -> bool:
        """Whether the file's write lock can be had, by a write that changes nothing."""
        nobody = Lease(run_id=self.run_id, owner="nobody", epoch=2**53 - 1)
        try:
            self.stores.journal.renew(nobody)
        except LeaseHeldError:
            return True
        except StoreBusyError as error:
            self.account.say(_US, f"nobody can write: {error}")
            return False
        message = "the store renewed a lease that it has never granted"
        raise StoryError(message)

    def take_over(self) -> None:
        """Let A's lease run out, and an ordinary worker find the run."""
        before = self._lease()
        self.b = self._start("worker B", "follow")
        self.cast.wait_for(self.b, "sweeping")
        if _same_and_live(before, self._lease()):
            self.account.say("worker B", "looks for work; the run is held, so it passes it over")
        self._until("A's lease has run out", lambda: not _same_and_live(before, self._lease()))
        self.account.say(_US, f"the lease of A (epoch {before.epoch if before else '?'}) is over")
        self.outcome = self.cast.wait_for(self.b, "outcome", within_seconds=self.patience_seconds)
        self.account.say(
            "worker B",
            f"finishes: {self.outcome['status']}; {self.outcome['replayed']} steps from the "
            f"journal, {self.outcome['executed']} executed, the interrupted one among them",
        )
        self.cast.wait_for(self.b, "stopped")
        self.b.wait(self.patience_seconds)

    def thaw_a(self) -> None:
        """Take the run ourselves, so that A meets a live lease; then let A try everything."""
        self.guard = self.stores.journal.acquire(self.run_id, f"{_US}:guard")
        self.account.say(
            _US, f"takes the run under epoch {self.guard.epoch}: now there is a live lease to harm"
        )
        self.before = self._dump()
        self.a.go_on()
        self.a.thaw()
        self.account.say(_US, "thaws A (SIGCONT), which knows of nothing and goes on")
        self.ended = self.cast.wait_for(self.a, "ended")
        self.account.say(
            "worker A", f"its segment ends: {self.ended['error'] or ''} {self.ended['message']}"
        )
        self.account.say("worker A", "tries every write there is with the lease it had:")
        self.cast.wait_for(self.a, "tried")
        self.a.wait(self.patience_seconds)
        self.after = self._dump()
        try:
            self.stores.journal.release(self.guard)
        except LeaseHeldError as error:
            self.account.say(_US, f"our own lease was harmed: {error}")

    # --- what holds ---------------------------------------------------------------------------

    def judge(self) -> None:
        """Hold every promise against what happened."""
        check, ended, outcome = self.account.check, self.ended, self.outcome
        print("\nWhat must hold:")
        check(
            ended["error"] == "SupersededError",
            "worker A's segment ended as SupersededError",
            f"it ended as {ended['error'] or ended['message']}",
        )
        for mutation in dict.fromkeys((*_EVERY_MUTATION, *self.attempts)):
            told = self.attempts.get(mutation)
            check(
                told is not None and told["refused"],
                f"{mutation}: refused with LeaseHeldError",
                "never tried" if told is None else str(told.get("answer")),
            )
        rows = len(self.before.splitlines())
        check(
            self.before == self.after,
            f"the store is the same, byte for byte ({rows} rows and definitions)",
            _difference(self.before, self.after),
        )
        plain = workflow.count_plainly(self.options.wanted)
        check(
            outcome["status"] == "ok" and outcome["value"] == plain,
            f"the outcome is what one process computes plainly: {_shown(plain)}",
            f"the run came to {outcome['status']}, {outcome['value']}",
        )
        answered = Counter(entry.key for entry in self._steps() if entry.status == "ok")
        check(
            set(answered.values()) == {1} and len(answered) == plain["files"] + 2,
            f"each of {len(answered)} steps completed once",
            f"{answered.most_common(1)}",
        )
        check(
            outcome["replayed"] == self.done_by_a
            and outcome["executed"] == len(answered) - self.done_by_a,
            f"worker B executed none of the {self.done_by_a} that A had completed",
            f"replayed {outcome['replayed']}, executed {outcome['executed']}",
        )
        epochs = [entry.epoch or 0 for entry in self._entries()]
        check(
            epochs == sorted(epochs) and max(epochs, default=0) > self.half_read["epoch"],
            "along the journal the epochs never fall: "
            + " then ".join(f"{n} entries under {epoch}" for epoch, n in _runs(epochs)),
        )

    # --- help -----------------------------------------------------------------------------------

    def _start(self, name: str, role: str, *more: str) -> Child:
        letter = name[-1].lower()
        arguments = [role, "--store", self.options.url, "--run", self.run_id]
        arguments += ["--owner", f"worker-{letter}", "--args", json.dumps(self.options.wanted)]
        child = self.cast.start(name, *arguments, *more)
        self.account.say(name, f"starts as process {child.pid}")
        return child

    def hear(self, child: Child, told: Report) -> None:
        """Hear a report: tell it, and keep what A tried."""
        self.account.hear(child, told)
        if told["kind"] == "attempt":
            self.attempts[told["mutation"]] = told

    def _lease(self) -> LeaseInfo | None:
        return self.leases.get_lease(self.run_id)

    def _entries(self) -> list[JournalEntry]:
        return read_journal(self.run_id, self.stores.journal.load(self.run_id))

    def _steps(self) -> list[JournalEntry]:
        return [entry for entry in self._entries() if entry.kind == "step"]

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + self.patience_seconds
        while not holds():
            if time.monotonic() > give_up_at:
                message = f"waited {self.patience_seconds:g} s in vain until {what}"
                raise StoryError(message)
            time.sleep(0.02)

    def _dump(self) -> bytes:
        command = [sys.executable, str(_DUMP), str(self.options.database)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _same_and_live(before: LeaseInfo | None, now: LeaseInfo | None) -> bool:
    if before is None or now is None:
        return False
    return now.live and (now.owner, now.epoch) == (before.owner, before.epoch)


def _difference(before: bytes, after: bytes) -> str:
    old, new = set(before.splitlines()), set(after.splitlines())
    changed = [b"- " + row for row in sorted(old - new)] + [
        b"+ " + row for row in sorted(new - old)
    ]
    return b"; ".join(row[:120] for row in changed[:6]).decode("utf-8", "replace")


def _shown(merged: workflow.Merged) -> str:
    return (
        f"{merged['files']} files, {merged['lines']:,} lines, {merged['bytes']:,} bytes, "
        f"sha256 {merged['sha256'][:12]}"
    )


def _runs(epochs: list[int]) -> Iterator[tuple[int, int]]:
    yield from Counter(epochs).items()


# --- the command ------------------------------------------------------------------------------


_EPILOG = """\
examples:
  python examples/quickstart/quickstart.py
  python examples/quickstart/quickstart.py docs --limit 20 --database story.db

Exit status: 0 when every promise held, 1 when one did not, 2 when it cannot run.
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="quickstart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        help="read the files of this folder and its sub-folders (default: the modules of this "
        "Python's standard library)",
    )
    parser.add_argument("--limit", type=int, default=60, help="at most so many files (default: 60)")
    parser.add_argument(
        "--database",
        type=Path,
        help="the SQLite file to use, made when it is not there (default: one in a new "
        "temporary folder); it stays",
    )
    parser.add_argument(
        "--lease-ttl-ms",
        type=int,
        default=1_500,
        help="how long a lease lives without renewal, in milliseconds (default: 1500)",
    )
    options = parser.parse_args()
    if not hasattr(signal, "SIGSTOP"):
        parser.error(
            "this system cannot freeze a process: the quickstart needs SIGSTOP, which Linux and "
            "macOS have and Windows has not"
        )
    if options.limit < 1:
        parser.error(f"--limit must be at least 1, not {options.limit}")
    if options.lease_ttl_ms < 300:
        parser.error(
            f"--lease-ttl-ms must be at least 300, not {options.lease_ttl_ms}: a lease must live "
            "long enough for a process to do something under it"
        )
    directory = options.directory
    if directory is not None and not directory.is_dir():
        parser.error(f"{directory} is no folder")
    options.wanted = workflow.Wanted(
        directory=str((directory or Path(workflow.standard_library())).resolve()),
        pattern="**/*" if directory else "*.py",
        limit=options.limit,
    )
    if not workflow.list_files(options.wanted):
        parser.error(f"there are no files in {options.wanted['directory']}")
    _choose_database(parser, options)
    return options


def _choose_database(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.database is None:
        options.database = Path(tempfile.mkdtemp(prefix="rulvar-quickstart-"), "quickstart.db")
    options.database = options.database.resolve()
    if options.database.is_relative_to(options.wanted["directory"]):
        # Closing any plain handle on an open database drops the process's locks on it.
        parser.error(
            f"--database {options.database} lies in the folder that is read, and the files of an "
            "open database must not be: choose a place outside it"
        )
    options.store = f"sqlite:///{quote(str(options.database))}"
    options.url = f"{options.store}?lease_ttl_ms={options.lease_ttl_ms}"


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def play(options: argparse.Namespace) -> int:
    """Play the story; return the exit status."""
    account = Account()
    with open_stores(options.url) as opened, Cast() as cast:
        stores = assert_fenced_writes(opened)
        story = Story(account, cast, stores, options)
        cast.hear = story.hear
        print(f"files     {options.wanted['directory']}")
        print(f"database  {options.database}")
        print(f"run       {story.run_id}, leases of {options.lease_ttl_ms} ms\n", flush=True)
        try:
            story.freeze_a()
            story.take_over()
            story.thaw_a()
        except StoryError as error:
            account.failed.append(str(error))
        else:
            story.judge()
    if account.failed:
        print("\nFAILED:")
        for what in account.failed:
            print(f"  {what}")
    else:
        print("\nEverything holds: a worker that stalled could change nothing.")
    show = ["rulvar", "runs", "show", story.run_id, "--store", options.store]
    if "HATCH_ENV_ACTIVE" in os.environ:
        show = ["hatch", "run", *show]
    print(f"The database stays. It tells the same story:\n  {shlex.join(show)}")
    return 1 if account.failed else 0


def main() -> int:
    """Run the quickstart; return its exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    try:
        return play(options)
    except RulvarError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; no worker is left behind", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
