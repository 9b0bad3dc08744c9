"""What an audit finds: verdicts and typed reports.

============== ======================================================= ===============
verdict        the run                                                 repair
============== ======================================================= ===============
consistent     its row says what its journal supports                  not needed
meta-behind    its row lags behind, or contradicts, a journalled       status and time
               settle                                                  from the journal
stranded       its row is terminal over live journal work: no worker   the same
               would ever look at it
suspect        open suspensions under a completed row, a journal       reported only
               without a row, a row of another run of that id
damaged        records, row, lease or list of blobs unreadable,        reported only
               records out of order or lost, no beginning, or
               epochs that fall along the journal
owned          a live holder is working on it: what looks divergent    left alone
               may be a moment's state
============== ======================================================= ===============

Blobs are reported beside the verdict: they never make a row wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from rulvar.core.records import LeaseInfo, RunMeta

__all__ = [
    "REPAIRABLE",
    "VERDICTS",
    "BlobFinding",
    "Finding",
    "Repair",
    "RepairOutcome",
    "RowChange",
    "RunAudit",
    "Verdict",
]

Verdict = Literal["consistent", "meta-behind", "stranded", "suspect", "damaged", "owned"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
REPAIRABLE: frozenset[Verdict] = frozenset({"meta-behind", "stranded"})
"""The verdicts that a repair answers; every other is reported and never rewritten."""

FindingCode = Literal[
    "abandoned-branches",
    "between-segments",
    "blobs-unreadable",
    "dangling-calls",
    "entry-unreadable",
    "epochs-fall",
    "forward-reference",
    "genesis-differs",
    "journal-unreadable",
    "lease-unreadable",
    "never-began",
    "no-row",
    "no-start",
    "order",
    "records-lost",
    "other-hash-version",
    "row-behind",
    "row-unreadable",
    "run-id",
    "segments-behind",
    "terminal-over-work",
    "waiting-calls",
]

RepairOutcome = Literal["unneeded", "planned", "repaired", "skipped", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact that speaks for the verdict, or that is worth knowing beside it.

    ``position`` is a record's place in the journal, counted from 0; ``seq`` its number.
    """

    code: FindingCode
    message: str
    seq: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFinding:
    """A blob that nothing refers to (``orphan``), or one that is not there (``missing``).

    What a completed call no longer needs is neither: pruning deletes it, and may have.
    ``age_ms`` is how long ago an orphan was stored, where the store knows. A missing blob
    that is not ``required`` may never have been written: a turn loop that crashed in its
    first turn has no checkpoint.
    """

    ref: str
    state: Literal["orphan", "missing"]
    what: str | None = None
    required: bool = False
    size_bytes: int | None = None
    stored_at: int | None = None
    age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """What a repair writes into a row: these two fields and nothing else."""

    status: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAudit:
    """What was found of one run.

    ``row`` is None when there is none or it cannot be read; ``journal_status`` is what the
    last settle says; ``entries`` is None when the journal cannot be read. ``change`` is what
    a repair would write, and is there exactly for the verdicts in `REPAIRABLE`.
    """

    run_id: str
    verdict: Verdict
    row: RunMeta | None
    journal_status: str | None
    entries: int | None
    holder: LeaseInfo | None = None
    findings: tuple[Finding, ...] = ()
    change: RowChange | None = None
    blobs: tuple[BlobFinding, ...] = ()

    @property
    def row_status(self) -> str | None:
        """The status that the row says."""
        return None if self.row is None else self.row.status

    @property
    def missing(self) -> tuple[BlobFinding, ...]:
        """The blobs that the run needs and that are not there."""
        return tuple(blob for blob in self.blobs if blob.state == "missing" and blob.required)

    @property
    def orphans(self) -> tuple[BlobFinding, ...]:
        """The blobs that nothing refers to."""
        return tuple(blob for blob in self.blobs if blob.state == "orphan")

    @property
    def sound(self) -> bool:
        """Whether this run needs no attention: consistent or owned, and no blob missing."""
        return self.verdict in {"consistent", "owned"} and not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair did about one run, or would do.

    ============ ==================================================================
    outcome      meaning
    ============ ==================================================================
    unneeded     consistent, or repaired by another process meanwhile
    planned      a dry run: ``change`` is what would be written
    repaired     ``change`` was written; ``after`` is the audit made then
    skipped      nothing was written: ``why`` says why, ``holder`` who has the run
    left         suspect or damaged: reported, never rewritten
    ============ ==================================================================
    """

    run_id: str
    outcome: RepairOutcome
    before: RunAudit
    after: RunAudit
    change: RowChange | None = None
    epoch: int | None = None
    why: str | None = None

    @property
    def holder(self) -> LeaseInfo | None:
        """Who has the run, as far as it is known."""
        return self.after.holder or self.before.holder

    @property
    def sound(self) -> bool:
        """Whether this run needs no further attention."""
        return self.after.sound
