"""The coordinator: starts the processes, disturbs them, and has the checker judge them."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.contract.levels import Sharing
from rulvar.conformance.harness.failure import NotVerified
from rulvar.conformance.soak.background import LiveChecker, disturb, read
from rulvar.conformance.soak.checker import judge
from rulvar.conformance.soak.client import look_at
from rulvar.conformance.soak.coverage import coverage_of, shortfall, thin_names, with_clock
from rulvar.conformance.soak.faults import Faults
from rulvar.conformance.soak.forks import CHILDREN
from rulvar.conformance.soak.history import EventLog, Recorder, now, read_history
from rulvar.conformance.soak.orders import Orders, WorkerConfig, publish
from rulvar.conformance.soak.plan import CI
from rulvar.conformance.soak.processes import SpareProcesses, WorkerProcess
from rulvar.conformance.soak.progress import Progress
from rulvar.conformance.soak.report import SoakReport
from rulvar.conformance.soak.results import Verdict, Violation, ViolationKind
from rulvar.conformance.soak.worker import storm
from rulvar.core.capabilities import lease_ttl_ms_of
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.conformance.harness.store_under_test import Opener, StoreUnderTest, TestLocation
    from rulvar.conformance.soak.coverage import CoverageMatrix, Shortfall
    from rulvar.conformance.soak.plan import Plan

__all__ = ["soak"]

_TURN_S = 0.004
_FEW_DEAD = 0.08
_ORDERS_EVERY_NS = 40_000_000
_NUDGE_EVERY_NS = 200_000_000
_SHOW_EVERY_NS = 500_000_000
_IDLE_RUN_NS = 4_000_000_000
_END_S = 20.0
_LONGEST_TTL_MS = 5_000


def soak(
    subject: StoreUnderTest,
    plan: Plan = CI,
    *,
    stop_at_first: bool = True,
    progress: Callable[[str], None] | None = None,
    keep: bool = False,
) -> SoakReport:
    """Storm one location of a store with real processes, and judge what they did to it.

    ``stop_at_first`` ends the storm at its first violation. ``progress`` is given a line
    about twice a second. The folder with the reports of the processes is kept when the soak
    did not pass, or with ``keep``; the report names it.

    Raises `ConfigError` for a store that no other process can open, for one without leases,
    for leases that live too long to be waited for, and where processes cannot be stopped.
    """
    if not hasattr(signal, "SIGSTOP"):
        message = "a soak stops processes with SIGSTOP, which this system does not have"
        raise ConfigError(message)
    if subject.sharing is not Sharing.SHARED:
        message = (
            f"{subject.name} reaches one {subject.sharing} only: a soak needs a store that several "
            "processes can open; certify it instead"
        )
        raise ConfigError(message)
    place = subject.fresh(lease_ttl_ms=plan.lease_ttl_ms, manual_clock=False)
    folder = Path(tempfile.mkdtemp(prefix="rulvar-soak-"))
    kept = False
    try:
        report = _Soak(subject, plan, place, folder, progress).run(stop_at_first=stop_at_first)
        kept = keep or not report.passed
        if not kept:
            report.folder = None
    except Exception as error:
        kept = not isinstance(error, ConfigError)
        if kept:
            error.add_note(f"what the processes had reported by then is in {folder}")
        raise
    finally:
        place.discard()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return report


class _Soak:
    def __init__(
        self,
        subject: StoreUnderTest,
        plan: Plan,
        place: TestLocation,
        folder: Path,
        show: Callable[[str], None] | None,
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._place = place
        self._folder = folder
        self._show = show
        self._stores = place.open()
        self._matrix: CoverageMatrix = coverage_of(self._stores)
        ttl_ms = lease_ttl_ms_of(self._stores.journal)
        if not place.honours_ttl and (ttl_ms is None or ttl_ms > _LONGEST_TTL_MS):
            message = (
                f"{subject.name}: its leases live for {ttl_ms} ms, and a soak waits for many to "
                f"run out: let it take lease_ttl_ms, or open it with at most {_LONGEST_TTL_MS} ms"
            )
            raise ConfigError(message)
        opener = _opener(place)
        self._tag = f"soak-{plan.seed}-{now() % 1_000_000:06}"
        ttl_ms = ttl_ms or plan.lease_ttl_ms
        self._matrix = with_clock(self._matrix, opener, f"{self._tag}-clock", ttl_ms)
        self._generations = [0] * (plan.slots + plan.side_runs)
        self._began = now()
        self._progress = Progress()
        self._log = EventLog(folder)
        self._violations: list[Violation] = []
        self._recorder = Recorder(folder, 0, 1)
        self._live_checker = LiveChecker(folder)
        spares = self._spares = SpareProcesses(opener)

        def worker(number: int, work: Callable[..., object]) -> WorkerProcess:
            config = WorkerConfig(plan, self._matrix, str(folder), number, opener)
            return WorkerProcess(config, spares, work)

        numbers = range(1, plan.processes + 1)
        self._workers = [worker(number, storm) for number in numbers]
        self._background = [
            worker(plan.processes + 1, disturb),
            worker(plan.processes + 2, read),
        ]
        self._faults = Faults(
            plan,
            self._recorder,
            self._progress,
            self._workers,
            self._background,
            seizes=self._matrix.seizes,
        )

    # --- the whole ----------------------------------------------------------------------------

    def run(self, *, stop_at_first: bool) -> SoakReport:
        """Storm to the coverage goals, the deadline or the first violation, and judge."""
        everybody = [*self._workers, *self._background]
        thin: list[Shortfall] = []
        try:
            self._order(thin)
            for each in everybody:
                each.start()
            thin = self._storm(stop_at_first=stop_at_first)
            self._end()
        finally:
            for each in everybody:
                each.kill()
            self._spares.end()
            self._live_checker.end()
        self._read()
        stormed_s = (now() - self._began) / 1e9
        looked = self._look_last()
        self._recorder.close()
        verdict = self._judge_all(looked=looked)
        if not self._place.fresh and verdict.sound:
            self._sweep()
        return SoakReport(
            subject=self._subject.name,
            plan=self._plan,
            matrix=self._matrix,
            progress=self._progress,
            thin=tuple(thin),
            verdict=verdict,
            seconds=stormed_s,
            folder=self._folder,
            again=f"soak(<{self._subject.name}>, <this plan, seed {self._plan.seed}>)",
        )

    def _storm(self, *, stop_at_first: bool) -> list[Shortfall]:
        """Go on until it is enough; return what is still thin when it is over."""
        thin = shortfall(self._progress, self._matrix, self._plan.goals)
        deadline = self._began + int(self._plan.deadline_s * 1e9)
        next_orders = next_show = next_nudge = 0
        targets: tuple[str, ...] = ()
        while thin and not self._violations:
            self._read()
            self._faults.note_self_stops()
            go_on = self._faults.turn()
            instant = now()
            if go_on or self._faults.targets != targets or instant >= next_orders:
                targets = self._faults.targets
                thin = shortfall(self._progress, self._matrix, self._plan.goals)
                self._retire(instant)
                self._order(thin)
                self._faults.thin = frozenset(f"{each.surface} {each.death}" for each in thin)
                next_orders = instant + _ORDERS_EVERY_NS
            for each in go_on:
                each.thaw()
                self._faults.thawed(each)
            self._revive()
            if instant >= next_nudge:
                self._faults.nudge()
                next_nudge = instant + _NUDGE_EVERY_NS
            if instant >= next_show:
                self._tell(thin)
                next_show = instant + _SHOW_EVERY_NS
            if stop_at_first:
                self._violations += self._live_checker.turn()
            if instant > deadline:
                break
            time.sleep(_TURN_S)  # until the next look at reports that others write
        return thin

    def _read(self) -> None:
        for event in self._log.new_events():
            self._progress.take(event)

    def _revive(self) -> None:
        """Begin the next life of whoever was killed; take note of what went up."""
        for each in self._faults.killed:
            self._read()
            self._progress.lost(each.process)
            self._progress.lost(CHILDREN + each.process)
            each.start()
        self._faults.killed.clear()
        self._spares.prepare()
        for each in (*self._workers, *self._background):
            if each.ended:
                self._untyped(each)

    def _untyped(self, who: WorkerProcess) -> None:
        error = who.error
        what = "ended" if error is None else f"{type(error).__name__}: {error}"
        words = f"process {who.process}, life {who.life}: {what}"
        self._violations.append(Violation(kind=ViolationKind.UNTYPED_ERROR, run_id="", words=words))

    # --- orders -------------------------------------------------------------------------------

    def _run_id(self, slot: int) -> str:
        kind = "run" if slot < self._plan.slots else "side"
        return f"{self._tag}-{kind}{slot}-{self._generations[slot]}"

    def _retire(self, instant: int) -> None:
        """Put a new run in the place of one that is long, or that nobody gets."""
        for slot in range(len(self._generations)):
            run_id = self._run_id(slot)
            since = self._progress.touched.get(run_id, instant)
            if (
                self._progress.records[run_id] >= self._plan.records_of_a_run
                or instant - since > _IDLE_RUN_NS
            ):
                self._generations[slot] += 1

    def _order(self, thin: list[Shortfall], *, ending: bool = False) -> None:
        slots = range(len(self._generations))
        publish(
            self._folder,
            Orders(
                runs=tuple(self._run_id(slot) for slot in slots[: self._plan.slots]),
                side_runs=tuple(self._run_id(slot) for slot in slots[self._plan.slots :]),
                targets=self._faults.targets,
                frozen=self._faults.frozen,
                thin=thin_names(thin),
                self_stops=self._faults.self_stops,
                dead_share=self._share_of_dead(thin),
                ending=ending,
            ),
        )

    def _share_of_dead(self, thin: list[Shortfall]) -> float:
        """Lean to what is missing more."""
        missing = {each.surface: each.missing / each.need for each in thin}
        accepted, refused = missing.get("<accepted>", 0.0), missing.get("<refused>", 0.0)
        cells = set(self._matrix.cells)
        if not refused and not any((each.surface, each.death) in cells for each in thin):
            return _FEW_DEAD
        return min(0.75, max(0.2, 0.45 + 0.6 * (refused - accepted)))

    def _tell(self, thin: list[Shortfall]) -> None:
        if self._show is None:
            return
        progress = self._progress
        accepted = sum(progress.accepted[op] for op in self._matrix.surfaces)
        faults = ", ".join(f"{kind} {n}" for kind, n in sorted(progress.faults.items()))
        self._show(
            f"{(now() - self._began) / 1e9:5.1f} s  accepted {accepted}, refused "
            f"{progress.refusals}, takeovers {progress.takeovers.total()}; {faults}; "
            f"thin {len(thin)}: {thin[0] if thin else 'nothing'}"
        )

    # --- the end ------------------------------------------------------------------------------

    def _end(self) -> None:
        """Let everybody end by himself."""
        frozen = self._faults.end()
        self._order([], ending=True)
        for each in frozen:
            each.thaw()
            self._faults.thawed(each)
        deadline = time.monotonic() + _END_S
        # One that was about to stop itself has stopped by then, and is let go.
        time.sleep(_TURN_S)
        self._faults.nudge()
        for each in (*self._workers, *self._background):
            if each.ended and each.error is None:
                continue
            if not self._faults.wait_for(each, deadline - time.monotonic()):
                words = f"process {each.process}, life {each.life}: it hangs in a call"
                self._violations.append(
                    Violation(kind=ViolationKind.UNTYPED_ERROR, run_id="", words=words)
                )
            elif each.error is not None and not self._violations:
                self._untyped(each)

    def _look_last(self) -> bool:
        """Look at every run; return whether all could be read."""
        looked = [self._looked_at(run_id) for run_id in sorted(self._progress.touched)]
        return all(looked)

    def _looked_at(self, run_id: str) -> bool:
        try:
            look = look_at(self._stores, run_id, blobs=self._matrix.blobs)
        except Exception as error:  # noqa: BLE001 - what cannot be read is a violation
            words = f"the last look failed: {type(error).__name__}: {error}"
            self._violations.append(
                Violation(kind=ViolationKind.UNTYPED_ERROR, run_id=run_id, words=words)
            )
            return False
        self._recorder.seen(
            run_id, lease=None, journal=look.journal, row=look.row, blobs=look.blobs
        )
        return True

    def _sweep(self) -> None:
        """Leave nothing but tombstones at a place that others use: nobody owns these runs."""
        for run_id in self._progress.touched:
            if self._matrix.blobs:
                for ref in self._stores.transcripts.list_refs(run_id):
                    self._stores.transcripts.delete(ref)
            self._stores.journal.delete(run_id)

    def _judge_all(self, *, looked: bool) -> Verdict:
        verdict = judge(read_history(self._folder), ended=looked)
        known = set(map(_about, verdict.violations))
        # What was found on the way stays found, also where the end hides it.
        more = tuple(each for each in self._violations if _about(each) not in known)
        return Verdict(violations=(*verdict.violations, *more), tally=verdict.tally)


def _opener(place: TestLocation) -> Opener:
    try:
        return place.opener()
    except NotVerified as error:
        message = f"no other process can open the store: {error}"
        raise ConfigError(message) from error


def _about(violation: Violation) -> tuple[str, str, str]:
    return (violation.kind, violation.run_id, violation.words)
