"""How `probe_fencing` finds out: it plays both the stalled worker and its successor.

Each *stage* takes a tenure of a throw-away run, writes under it, lets it die in one of the
ways that a lease dies, and offers the dead lease to every mutation. Refused means that the
store raised `LeaseHeldError` and that what can be read of the run is what it was before. What
speaks against a store counts when it happens again in a fresh tenure, with no other owner in
between: a probe that stalled until another had its run must not accuse a sound store.
The run ids are few and fixed, so that a crashed probe leaves nothing that the next one does
not clear; a probe skips a run id that another holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from rulvar.core._probe_report import (
    FencingReport,
    ProbeFinding,
    ProbeLease,
)
from rulvar.core.capabilities import (
    has_fenced_journal,
    has_fenced_transcripts,
    has_lease_admin,
    has_lease_batch,
    has_leases,
    has_meta_lookup,
    has_whole_run_delete,
)
from rulvar.core.clock import SystemClock
from rulvar.core.errors import (
    ConfigError,
    JournalOrderViolation,
    LeaseHeldError,
    StoreBusyError,
    StoreError,
)
from rulvar.core.ids import SystemIds
from rulvar.core.records import JournalRecord, Lease, RunFilter, RunMeta
from rulvar.core.wire import format_time, json_text

if TYPE_CHECKING:
    from rulvar.core._probe_report import ProbeOutcome
    from rulvar.core.clock import Clock
    from rulvar.core.ids import IdSource
    from rulvar.core.mutations import Mutation
    from rulvar.core.protocols import LeasableStore, LeaseAdmin, TranscriptStore
    from rulvar.core.stores import StorePair

__all__ = ["probe_fencing"]

_POOL = 8
_TRIES = 6
_PROBE_NAME = "rulvar-probe"
_DEAD: tuple[ProbeLease, ...] = get_args(ProbeLease)[1:]
_SEEDS: tuple[Mutation, ...] = ("append", "put_meta", "put_blob")
_ORDER: tuple[Mutation, ...] = (
    *_SEEDS,
    "delete_blob",
    "renew",
    "renew_all",
    "seize",
    "release",
    "delete",
    "delete_whole_run",
)
_ABOUT_LEASES: frozenset[Mutation] = frozenset(
    {"renew", "renew_all", "release", "acquire", "seize"}
)
_FENCED_MUTATIONS: frozenset[Mutation] = frozenset(
    {"append", "put_meta", "put_blob", "delete_blob", "renew", "release", "delete"}
)
_VISIBLE: frozenset[Mutation] = frozenset(
    {"append", "put_meta", "put_blob", "delete_blob", "delete"}
)
"""What changes something that every store lets one read."""
_LOST = frozenset({"expired", "superseded", "released"})
"""Why a lease that the probe was granted may be dead without any fault of the store."""


def probe_fencing(
    stores: StorePair, /, *, clock: Clock | None = None, ids: IdSource | None = None
) -> FencingReport:
    """Find out by trying whether this database refuses every mutation of a dead lease.

    Runs on throw-away runs named ``rulvar-probe-0`` to ``rulvar-probe-7`` (and each one's
    ``...-other``), whose rows no worker sweeps, and leaves nothing behind but their
    tombstones. ``clock`` and ``ids`` give the time and the tokens that it writes.

    Raises `ConfigError` when the journal store grants no leases, `StoreBusyError` when other
    probes hold every run of the pool or the leases end too soon to tell, and what the store
    raises when it cannot answer. See contract.md#start-up-checks.
    """
    journal = stores.journal
    if not has_leases(journal):
        kind = f"{type(journal).__module__}.{type(journal).__qualname__}"
        message = f"the journal store {kind} grants no leases, so there is no fence to probe"
        raise ConfigError(message)
    owner = f"{_PROBE_NAME}:{(ids if ids is not None else SystemIds()).token()}"
    now = format_time((clock if clock is not None else SystemClock()).now_ms())
    pool = [
        _Probe(journal, stores.transcripts, f"{_PROBE_NAME}-{number}", owner, now)
        for number in range(_POOL)
    ]
    for probe in pool:
        try:
            report = probe.run()
        except _TakenError:
            continue
        for crashed in pool:
            crashed.clear()
        return report
    message = f"other probes hold {_PROBE_NAME}-0 to {_PROBE_NAME}-{_POOL - 1}: try again later"
    raise StoreBusyError(message)


def _finding(
    mutation: Mutation, kind: ProbeLease, outcome: ProbeOutcome, detail: str
) -> ProbeFinding:
    expected: ProbeOutcome = "landed" if kind == "live" and mutation != "acquire" else "refused"
    return ProbeFinding(
        mutation=mutation, lease=kind, outcome=outcome, expected=expected, detail=detail
    )


class _TakenError(Exception):
    """Another owner holds this run id."""


class _StuckError(Exception):
    """The store keeps the probe from going on; a finding says how."""


class _Probe:
    """One throw-away run, its live lease, and what was found on it."""

    def __init__(
        self,
        journal: LeasableStore,
        transcripts: TranscriptStore,
        run_id: str,
        owner: str,
        now: str,
    ) -> None:
        self._journal = journal
        self._transcripts = transcripts
        self._run_id = run_id
        self._other = f"{run_id}-other"
        self._owner = owner
        self._now = now
        self._live: Lease | None = None
        self._latest: Lease | None = None
        self._highest = -1
        self._gaps = 0
        self._writes = 0
        self._findings: dict[tuple[Mutation, ProbeLease], ProbeFinding] = {}

    def run(self) -> FencingReport:
        """Try everything; clear the run, whatever happened. Raises `_TakenError`."""
        self._take()
        try:
            for mutation in _FENCED_MUTATIONS - self._mutations():
                self._note(mutation, "superseded", "undeclared", "it takes no lease")
            self._try_live()
            for kind in _DEAD:
                self._try_dead(kind)
        except _StuckError:
            pass  # it is among the findings
        finally:
            self.clear()
        return FencingReport(run_id=self._run_id, findings=tuple(self._findings.values()))

    # --- tenures ----------------------------------------------------------------------------

    def _take(self) -> Lease:
        """Begin a tenure, ending the probe's own earlier one."""
        before, self._live = self._live, None
        journal = self._journal
        if before is not None and has_lease_admin(journal) and self._is_ours(journal, before):
            lease = journal.seize(self._run_id, self._owner)
        else:
            if before is not None:
                self._release(before)
            lease = self._acquire()
        self._live = self._latest = lease
        if lease.epoch <= self._highest:
            self._note("acquire", "live", "failed", f"epoch {lease.epoch} was granted before")
            raise _StuckError
        if lease.epoch > self._highest + 1:
            self._gaps += 1  # another owner may have had the run meanwhile
        self._highest = lease.epoch
        return lease

    def _is_ours(self, leases: LeaseAdmin, before: Lease) -> bool:
        """Whether no other owner has the run; none can take it just after a renewal."""
        if self._is_live(before):
            return True
        now = leases.get_lease(self._run_id)
        return now is None or not now.live or now.owner == self._owner

    def _acquire(self) -> Lease:
        try:
            return self._journal.acquire(self._run_id, self._owner)
        except LeaseHeldError as error:
            if error.holder != self._owner:
                raise _TakenError from error
            self._note("release", "live", "failed", "the lease outlived its release")
            raise _StuckError from error

    def _release(self, lease: Lease) -> None:
        try:
            self._journal.release(lease)
        except LeaseHeldError as error:
            if error.reason not in _LOST:
                self._note("release", "live", "refused", error.reason)

    def _die(self, kind: ProbeLease) -> Lease:
        """Return a dead lease of that kind, with fresh state under a live one beside it."""
        lease = self._take()
        self._seed(lease)
        if kind == "superseded":
            self._take()
        elif kind == "released":
            self._attempt("release", "live", self._run_id, lease)
            self._live = None
        elif kind == "forged owner":
            return Lease(
                run_id=lease.run_id, owner=f"{_PROBE_NAME}:never-granted", epoch=lease.epoch
            )
        elif kind == "forged epoch":
            return Lease(run_id=lease.run_id, owner=lease.owner, epoch=lease.epoch + 1)
        return lease

    # --- trying -----------------------------------------------------------------------------

    def _mutations(self) -> set[Mutation]:
        """Return the mutations that take a lease, by what the stores declare."""
        found: set[Mutation] = {"append", "renew", "release"}
        if has_lease_batch(self._journal):
            found.add("renew_all")
        if has_lease_admin(self._journal):
            found.add("seize")
        if has_fenced_journal(self._journal):
            found |= {"put_meta", "delete"}
            if has_whole_run_delete(self._journal):
                found.add("delete_whole_run")
        if has_fenced_transcripts(self._transcripts):
            found |= {"put_blob", "delete_blob"}
        return found

    def _seed(self, lease: Lease) -> None:
        """Write an entry, a row and a blob, so that there is something to change."""
        for mutation in _SEEDS:
            if mutation in self._mutations():
                self._attempt(mutation, "live", self._run_id, lease)

    def _try_live(self) -> None:
        lease = self._take()
        self._seed(lease)
        for mutation in ("renew", "renew_all"):
            if mutation in self._mutations():
                self._attempt(mutation, "live", self._run_id, lease)
        self._insist("acquire", "live", self._run_id, lease)

    def _try_dead(self, kind: ProbeLease) -> None:
        target = self._other if kind == "foreign-run" else self._run_id
        # These two name no run but the lease's own.
        skipped = {"renew", "renew_all", "release"} if kind == "foreign-run" else set()
        dead = self._die(kind)
        for mutation in _ORDER:
            if mutation in self._mutations() - skipped:
                dead = self._insist(mutation, kind, target, dead)

    def _insist(self, mutation: Mutation, kind: ProbeLease, run_id: str, lease: Lease) -> Lease:
        """Try a mutation that must be refused; return the lease to try the next one with."""
        for number in range(_TRIES):
            gaps = self._gaps
            finding = self._look(mutation, kind, run_id, lease)
            if finding.ok:
                break
            # It may have ended the successor's tenure, or changed what the next one tries.
            lease = self._die(kind)
            if number > 0 and self._gaps == gaps:
                break
        self._keep(finding)
        return lease

    def _attempt(self, mutation: Mutation, kind: ProbeLease, run_id: str, lease: Lease) -> bool:
        return self._keep(self._look(mutation, kind, run_id, lease))

    def _look(
        self, mutation: Mutation, kind: ProbeLease, run_id: str, lease: Lease
    ) -> ProbeFinding:
        before = self._observe()
        try:
            self._call(mutation, run_id, lease)
        except LeaseHeldError as error:
            # Before anything else is asked: a renewal of ours would look like a change of its.
            changed = self._observe() != before
            lives = kind == "live" and mutation != "acquire"
            if lives and not self._is_live(lease):
                raise self._too_slow() from error
            outcome: ProbeOutcome = "refused"
            if changed:
                outcome = "failed" if lives else "landed"
            detail = f"{error.reason}, yet the run changed" if changed else error.reason
        except JournalOrderViolation as error:
            outcome, detail = "failed", f"the fence was not asked: {error}"
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - it is what the report says
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
        else:
            outcome, detail = "landed", ""
            # Where another probe has just cleared everything, there is nothing left to delete.
            owed = mutation in _VISIBLE and (mutation in _SEEDS or any(before))
            if owed and self._observe() == before:
                if kind == "live" and mutation in _SEEDS and not self._is_live(lease):
                    raise self._too_slow()
                outcome = "failed" if kind == "live" else "landed"
                detail = "returned, but nothing changed"
        return _finding(mutation, kind, outcome, detail)

    def _is_live(self, lease: Lease) -> bool:
        """Whether the journal store itself still takes the lease for live."""
        try:
            self._journal.renew(lease)
        except LeaseHeldError:
            return False
        return True

    def _too_slow(self) -> StoreBusyError:
        message = (
            f"the lease on {self._run_id!r} was lost before the probe was done: probe again, "
            "with a longer lease_ttl_ms"
        )
        return StoreBusyError(message, run_id=self._run_id)

    def _note(
        self, mutation: Mutation, kind: ProbeLease, outcome: ProbeOutcome, detail: str
    ) -> None:
        self._keep(_finding(mutation, kind, outcome, detail))

    def _keep(self, finding: ProbeFinding) -> bool:
        """Add a finding to the report, where the first bad one stays."""
        about = (finding.mutation, finding.lease)
        known = self._findings.get(about)
        if known is None or known.ok:
            self._findings[about] = finding
        return finding.ok

    def _call(self, mutation: Mutation, run_id: str, lease: Lease) -> None:
        self._writes += 1
        if mutation in _ABOUT_LEASES:
            self._call_about(mutation, run_id, lease)
            return
        journal, transcripts = self._journal, self._transcripts
        if mutation == "append":
            tail = max((record.seq for record in journal.load(run_id)), default=-1)
            entry = {"seq": tail + 1, "kind": _PROBE_NAME, "write": self._writes}
            record = JournalRecord(seq=tail + 1, payload=json_text(entry).encode())
            journal.append(run_id, record, lease=lease)
        elif mutation == "put_meta" and has_fenced_journal(journal):
            journal.put_meta(self._row(run_id), lease=lease)
        elif mutation == "delete" and has_fenced_journal(journal):
            journal.delete(run_id, lease=lease)
        elif mutation == "delete_whole_run" and has_whole_run_delete(journal):
            journal.delete_whole_run(run_id, lease=lease)
        elif mutation == "put_blob" and has_fenced_transcripts(transcripts):
            transcripts.put(f"{run_id}/probe", f"{self._writes}".encode(), lease=lease)
        elif mutation == "delete_blob" and has_fenced_transcripts(transcripts):
            transcripts.delete(f"{run_id}/probe", lease=lease)

    def _call_about(self, mutation: Mutation, run_id: str, lease: Lease) -> None:
        journal = self._journal
        if mutation == "renew":
            journal.renew(lease)
        elif mutation == "renew_all" and has_lease_batch(journal):
            for refusal in journal.renew_all([lease]):
                raise refusal
        elif mutation == "seize" and has_lease_admin(journal):
            # Over a lease that is not the present one: granted to nobody.
            journal.seize(run_id, self._owner, over=lease)
        elif mutation == "release":
            journal.release(lease)
        elif mutation == "acquire":
            self._live = self._latest = journal.acquire(run_id, self._owner)
            self._highest = max(self._highest, self._live.epoch)

    def _row(self, run_id: str) -> RunMeta:
        # Terminal, so that no worker sweeps it; held, so that no retention takes it.
        return RunMeta(
            run_id=run_id,
            status="cancelled",
            updated_at=self._now,
            name=_PROBE_NAME,
            segments=self._writes,
        )

    # --- looking and clearing ---------------------------------------------------------------

    def _observe(self) -> tuple[object, ...]:
        """Return all that can be read of both run ids."""
        return tuple(part for run_id in (self._run_id, self._other) for part in self._read(run_id))

    def _read(self, run_id: str) -> tuple[object, ...]:
        journal = self._journal
        if has_meta_lookup(journal):
            row = journal.get_meta(run_id)
        else:
            found = journal.list_runs(RunFilter(name=_PROBE_NAME))
            row = next((meta for meta in found if meta.run_id == run_id), None)
        refs = self._transcripts.list_refs(run_id)
        blobs = tuple((ref, self._transcripts.get(ref)) for ref in refs)
        lease = journal.get_lease(run_id) if has_lease_admin(journal) else None
        return (tuple(journal.load(run_id)), row, blobs, lease)

    def clear(self) -> None:
        """Remove what stands under both run ids, unless another owner holds them."""
        if self._live is None and not any(self._observe()):
            return
        try:
            lease = self._take()
        except _TakenError:
            return
        except _StuckError:
            if self._latest is None:
                return
            lease = self._latest
        if any(self._read(self._other)):
            try:
                other = self._journal.acquire(self._other, self._owner)
            except LeaseHeldError:
                pass  # a crashed probe's lease: cleared by a probe after it has ended
            else:
                self._wipe(other)
        self._wipe(lease)
        self._live = None

    def _wipe(self, lease: Lease) -> None:
        if not self._is_live(lease):
            return  # another owner may have the run by now, and clears it
        for ref in self._transcripts.list_refs(lease.run_id):
            fenced = ref == f"{lease.run_id}/probe" and self._removes("delete_blob", lease)
            if not fenced and self._is_live(lease):
                self._transcripts.delete(ref)
        if not self._removes("delete", lease) and self._is_live(lease):
            self._journal.delete(lease.run_id)

    def _removes(self, mutation: Mutation, lease: Lease) -> bool:
        return mutation in self._mutations() and self._attempt(
            mutation, "live", lease.run_id, lease
        )
