"""`rulvar runs audit`: check each run's row against its journal, and repair it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from rulvar.cli.exit_codes import ExitStatus
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import plain, size, span
from rulvar.cli.store_access import opened_stores
from rulvar.cli.view.tables import columns, stacked
from rulvar.core.audit import audit_runs, count_runs, repair_runs
from rulvar.core.errors import ConfigError
from rulvar.core.formatting import counted
from rulvar.core.records import RUN_STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.cli.output import Output
    from rulvar.cli.view.tables import Renderable
    from rulvar.core.audit import BlobFinding, Repair, RunAudit

__all__ = ["audit"]

_STYLES = {
    "meta-behind": "yellow",
    "stranded": "red",
    "suspect": "yellow",
    "damaged": "red",
    "owned": "cyan",
    "consistent": "green",
    "repaired": "green",
    "skipped": "yellow",
}
_ORDER = ("consistent", "owned", "meta-behind", "stranded", "suspect", "damaged")


@click.command("audit")
@click.argument("run_ids", nargs=-1, metavar="[RUN_ID]...")
@click.option("--repair", is_flag=True, help="Rewrite rows that are behind or stranded.")
@click.option("--dry-run", is_flag=True, help="Show what --repair would write, and write nothing.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(RUN_STATUSES),
    help="Only runs whose row has this status; may be given several times.",
)
@store_option
@output_options
@pass_output
@click.pass_context
def audit(
    context: click.Context,
    output: Output,
    *,
    run_ids: tuple[str, ...],
    repair: bool,
    dry_run: bool,
    statuses: tuple[str, ...],
    store: str | None,
) -> None:
    """Check each run's status row against its journal.

    Without RUN_ID every run of which the store has any trace is checked. The audit changes
    nothing. --repair prints its plan, then rewrites the status and the time of the rows that
    are meta-behind or stranded, each checked again under a short lease; no step is executed.
    A run that a worker holds is skipped and reported; suspect and damaged runs are reported
    and left unchanged.

    Status 0 means that the catalogue ends consistent: every run is consistent or owned, and
    no blob that a journal needs is missing. Otherwise it is 1.

    \b
    Examples:
      rulvar runs audit
      rulvar runs audit --repair --dry-run
      rulvar runs audit --repair --json | jq .repairs
      rulvar runs audit order-17
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    tally = _look(output, run_ids, statuses or None, store)
    if not output.json:
        output.print(_findings_text(tally))
    if repair or dry_run:
        if not output.json:
            output.print(_plan_text(list(tally.plan.values())))
        if tally.plan and not dry_run:
            _apply(output, tally, store)
            if not output.json:
                output.print(_repairs_text(tally))
    if output.json:
        output.document(_document(tally, dry_run=dry_run))
    context.exit(ExitStatus.DONE if tally.sound else ExitStatus.FAILED)


@dataclass(slots=True)
class _Tally:
    """What was found so far; of a consistent run, nothing but its number is kept."""

    verdicts: Counter[str] = field(default_factory=Counter)
    notable: list[RunAudit] = field(default_factory=list)
    plan: dict[str, RunAudit] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)
    unsound: int = 0

    @property
    def sound(self) -> bool:
        """Whether no run needs attention."""
        return self.unsound == 0

    def found(self, found: RunAudit, *, named: bool) -> None:
        """Count a run."""
        self.verdicts[found.verdict] += 1
        self.unsound += not found.sound
        if named or found.verdict != "consistent" or found.blobs:
            self.notable.append(found)
        if found.change is not None:
            self.plan[found.run_id] = found

    def repaired(self, repair: Repair) -> None:
        """Count a run anew, as its repair has left it; the plan counted it as unsound."""
        self.repairs.append(repair)
        self.verdicts[self.plan[repair.run_id].verdict] -= 1
        self.verdicts[repair.after.verdict] += 1
        self.unsound -= repair.sound


def _look(
    output: Output, run_ids: tuple[str, ...], statuses: tuple[str, ...] | None, store: str | None
) -> _Tally:
    tally = _Tally()
    named = run_ids or None
    with opened_stores(store, read_only=True) as stores:
        look = output.is_interactive
        count = count_runs(stores, run_ids=named, statuses=statuses) if look else 0
        with output.bar("auditing", count) as bar:
            for found in audit_runs(stores, run_ids=named, statuses=statuses, progress=bar.update):
                if named is not None and _is_nothing(found):
                    raise ConfigError(_no_such_run(found.run_id))
                tally.found(found, named=named is not None)
    return tally


def _no_such_run(run_id: str) -> str:
    return f"there is no run {run_id!r} in this store: `rulvar runs ls` lists its runs"


def _is_nothing(found: RunAudit) -> bool:
    return found.row is None and found.entries == 0 and not found.blobs and found.holder is None


def _apply(output: Output, tally: _Tally, store: str | None) -> None:
    """Repair what is planned; each run is judged again under its lease."""
    wanted = list(tally.plan)
    with opened_stores(store, existing=True) as stores, output.bar("repairing", len(wanted)) as bar:
        for repair in repair_runs(stores, run_ids=wanted, progress=bar.update):
            tally.repaired(repair)


# --- for programs -------------------------------------------------------------------------


def _document(tally: _Tally, *, dry_run: bool) -> dict[str, object]:
    return {
        "sound": tally.sound,
        "runs": tally.verdicts.total(),
        "verdicts": {verdict: tally.verdicts[verdict] for verdict in _ORDER},
        "findings": [_audit_document(found) for found in tally.notable],
        "plan": [_plan_document(found) for found in tally.plan.values()],
        "repairs": [_repair_document(repair) for repair in tally.repairs],
        "dry_run": dry_run,
    }


def _audit_document(found: RunAudit) -> dict[str, object]:
    return {
        "run_id": found.run_id,
        "verdict": found.verdict,
        "row_status": found.row_status,
        "journal_status": found.journal_status,
        "entries": found.entries,
        "holder": None if found.holder is None else asdict(found.holder),
        "findings": [asdict(each) for each in found.findings],
        "change": None if found.change is None else asdict(found.change),
        "blobs": [asdict(each) for each in found.blobs],
    }


def _plan_document(found: RunAudit) -> dict[str, object]:
    change = None if found.change is None else asdict(found.change)
    return {"run_id": found.run_id, "verdict": found.verdict, "change": change}


def _repair_document(repair: Repair) -> dict[str, object]:
    return {
        "run_id": repair.run_id,
        "outcome": repair.outcome,
        "why": repair.why,
        "epoch": repair.epoch,
        "change": None if repair.change is None else asdict(repair.change),
        "after": repair.after.verdict,
        "holder": None if repair.holder is None else asdict(repair.holder),
    }


# --- for people ---------------------------------------------------------------------------


def _findings_text(tally: _Tally) -> Renderable:
    parts: list[Renderable] = []
    notable = [found for found in tally.notable if found.verdict != "consistent" or found.findings]
    if notable:
        rows = [
            (found.run_id, found.verdict, found.row_status, found.journal_status, _why(found))
            for found in notable
        ]
        titles = ("RUN", "VERDICT", "ROW", "JOURNAL", "WHY")
        parts += [columns(titles, rows, styles=_STYLES), ""]
    blobs = [blob for found in tally.notable for blob in found.blobs]
    if blobs:
        rows_of_blobs = [
            (
                blob.ref,
                _blob_state(blob),
                blob.what,
                "" if blob.size_bytes is None else size(blob.size_bytes),
                "" if blob.age_ms is None else span(blob.age_ms),
            )
            for blob in blobs
        ]
        parts += [columns(("BLOB", "STATE", "WHAT", "SIZE>", "AGE>"), rows_of_blobs), ""]
    return stacked([*parts, _summary(tally)])


def _summary(tally: _Tally) -> str:
    shown = ", ".join(f"{tally.verdicts[v]} {v}" for v in _ORDER if tally.verdicts[v])
    return f"{counted(tally.verdicts.total(), 'run')}: {shown}" if shown else "no runs"


def _why(found: RunAudit) -> str:
    parts = [plain(each.message) for each in found.findings]
    if found.verdict == "owned" and found.holder is not None:
        parts.insert(0, f"held by {plain(found.holder.owner)}, epoch {found.holder.epoch}")
    return "; ".join(parts)


def _blob_state(blob: BlobFinding) -> str:
    if blob.state == "missing" and not blob.required:
        return "missing (possibly never written)"
    return blob.state


def _plan_text(plan: Sequence[RunAudit]) -> Renderable:
    if not plan:
        return "\nnothing to repair"
    rows = []
    for found in plan:
        change, row = found.change, found.row
        if change is None or row is None:
            continue
        rows.append(
            (
                found.run_id,
                found.verdict,
                f"{row.status} -> {change.status}",
                f"{row.updated_at} -> {change.updated_at}",
            )
        )
    titles = ("RUN", "VERDICT", "STATUS", "UPDATED")
    return stacked(["", "Plan", columns(titles, rows, styles=_STYLES)])


def _repairs_text(tally: _Tally) -> Renderable:
    rows = [
        (repair.run_id, repair.outcome, repair.after.verdict, repair.why)
        for repair in tally.repairs
    ]
    table = columns(("RUN", "OUTCOME", "NOW", "WHY"), rows, styles=_STYLES)
    return stacked(["", "Repairs", table, "", _summary(tally)])
