"""Everything that a store has of one run, read once, changing nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.cli.exit_codes import ExitStatus
from rulvar.cli.view.timeline import read_timeline
from rulvar.core.capabilities import has_blob_info, has_lease_admin, has_meta_lookup
from rulvar.core.checks import check_run_id
from rulvar.core.errors import ConfigError, StoreCorruptError
from rulvar.core.journal import first_loss, read_entries
from rulvar.core.records import BlobStat, RunFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from rulvar.cli.view.timeline import Timeline
    from rulvar.core.records import LeaseInfo, RunMeta
    from rulvar.core.spi import JournalStore, TranscriptStore
    from rulvar.core.stores import StorePair

    T = TypeVar("T")

__all__ = ["Inspection", "inspect_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found.

    ``leases_known`` is False for a store that does not show its leases. ``timeline`` is None
    when the journal cannot be read; ``problems`` says what could not, and why.
    """

    run_id: str
    meta: RunMeta | None
    leases_known: bool
    lease: LeaseInfo | None
    timeline: Timeline | None
    blobs: tuple[BlobStat, ...]
    problems: tuple[str, ...]

    @property
    def exit_status(self) -> ExitStatus:
        """Done, or store trouble when a part could not be read."""
        return ExitStatus.STORE if self.problems else ExitStatus.DONE


def inspect_run(stores: StorePair, run_id: str) -> Inspection:
    """Read a run's row, lease, journal and blobs.

    An unreadable row or journal becomes a problem and hides nothing else. Raises
    `ConfigError` when the store has no trace of the run.
    """
    check_run_id(run_id)
    journal, problems = stores.journal, list[str]()
    leases_known = has_lease_admin(journal)
    # The lease first: what is read after it cannot be older than the holder that is shown.
    lease = journal.get_lease(run_id) if has_lease_admin(journal) else None
    meta = _attempt(lambda: _meta(journal, run_id), problems)
    segments = None if meta is None else meta.segments
    entries = _attempt(lambda: read_entries(run_id, journal.load(run_id)), problems)
    timeline = None if entries is None else read_timeline(entries, segments=segments)
    loss = None if entries is None else first_loss(entries)
    if loss is not None:
        problems.append(f"records are missing from the journal: {loss.message}; audit the run")
    blobs = _blobs(stores.transcripts, run_id)
    unknown = meta is None and lease is None and not blobs and not problems
    if unknown and timeline is not None and timeline.entries == 0:
        message = f"there is no run {run_id!r} in this store: `rulvar runs ls` lists its runs"
        raise ConfigError(message)
    return Inspection(
        run_id=run_id,
        meta=meta,
        leases_known=leases_known,
        lease=lease,
        timeline=timeline,
        blobs=blobs,
        problems=tuple(problems),
    )


def _attempt(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except StoreCorruptError as error:
        problems.append(str(error))
        return None


def _meta(journal: JournalStore, run_id: str) -> RunMeta | None:
    if has_meta_lookup(journal):
        return journal.get_meta(run_id)
    rows = journal.list_runs(RunFilter())
    return next((row for row in rows if row.run_id == run_id), None)


def _blobs(transcripts: TranscriptStore, run_id: str) -> tuple[BlobStat, ...]:
    found: list[BlobStat] = []
    for ref in transcripts.list_refs(run_id):
        if has_blob_info(transcripts):
            stat = transcripts.blob_info(ref)
        else:
            blob = transcripts.get(ref)
            stat = None if blob is None else BlobStat(ref=ref, size_bytes=len(blob))
        if stat is not None:
            found.append(stat)
    return tuple(found)
