"""The output of `rulvar runs show`, as text and as JSON.

The text goes from the whole to the parts: the row, the lease, the tenures with their
takeovers, each call, the blobs.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

from rulvar.cli.output import ago, plain, size, span
from rulvar.cli.view.outcomes import again
from rulvar.cli.view.tables import columns, stacked
from rulvar.core.formatting import command_line, counted
from rulvar.core.journal import SUSPECTED
from rulvar.core.records import TERMINAL_STATUSES
from rulvar.core.wire import format_time, json_text, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.cli.view.inspection import Inspection
    from rulvar.cli.view.tables import Renderable
    from rulvar.cli.view.timeline import Tenure, Timeline, TimelineCall
    from rulvar.core.records import RunMeta

__all__ = ["show_document", "show_text"]

_STYLES = {
    "ok": "green",
    "running": "cyan",
    "suspended": "yellow",
    "error": "red",
    "cancelled": "red",
}
_LONGEST_VALUE = 400
_MOST_NAMES = 5
_MOST_DEATHS = 20
_DATE_END = 10


def show_document(inspection: Inspection) -> dict[str, object]:
    """Return the inspection as one JSON document with stable names."""
    meta, lease, timeline = inspection.meta, inspection.lease, inspection.timeline
    return {
        "run_id": inspection.run_id,
        "run": None if meta is None else asdict(meta) | {"extra": dict(meta.extra)},
        "leases_known": inspection.leases_known,
        "lease": None if lease is None else asdict(lease),
        "journal": None if timeline is None else _journal_document(timeline),
        "tenures": [] if timeline is None else [asdict(each) for each in timeline.tenures],
        "calls": [] if timeline is None else [_flat(each) for each in timeline.calls],
        "blobs": [asdict(blob) for blob in inspection.blobs],
        "problems": list(inspection.problems),
    }


def _journal_document(timeline: Timeline) -> dict[str, object]:
    return {
        "entries": timeline.entries,
        "workflow": timeline.workflow,
        "genesis": timeline.genesis,
        "args_provided": timeline.args_provided,
        "args": timeline.args,
        "status": timeline.status,
        "result": timeline.result,
        "has_result": timeline.has_result,
        "error": timeline.error,
        "epochs_fall_at": timeline.epochs_fall_at,
        "takeovers": len(timeline.takeovers),
        "deaths": [asdict(each) for each in timeline.deaths],
        "waiting_for": [_wait_document(call) for call in timeline.waiting_for],
    }


def _flat(value: TimelineCall) -> dict[str, object]:
    """Return the fields of a value that holds plain ones alone; a run has very many calls."""
    return {each: getattr(value, each) for each in value.__slots__}


def _wait_document(call: TimelineCall) -> dict[str, object]:
    """Return a wait with the names of `Suspension`'s fields."""
    return {
        "kind": call.kind,
        "key": call.name,
        "deadline_at": call.deadline_at,
        "seq": call.seq,
    }


def show_text(inspection: Inspection, *, now_ms: int) -> Renderable:
    """Return the text for people."""
    parts: list[Renderable] = [_head(inspection, now_ms)]
    timeline = inspection.timeline
    if timeline is not None and timeline.tenures:
        parts += ["", "Tenures", _tenures(inspection, timeline), *_verdict(timeline)]
    if timeline is not None and timeline.deaths:
        parts += ["", "Deaths", _deaths(timeline)]
    if timeline is not None and timeline.calls:
        parts += ["", "Calls", _calls(timeline)]
    if inspection.blobs:
        parts += ["", "Blobs", _blobs(inspection)]
    return stacked(parts)


def _head(inspection: Inspection, now_ms: int) -> str:
    meta, timeline = inspection.meta, inspection.timeline
    lines = [("run", inspection.run_id)]
    if meta is None:
        lines.append(("row", "none: the run has a journal or blobs, but no status row"))
    else:
        lines += [
            ("status", _status(inspection)),
            ("workflow", _workflow(meta)),
            ("name", meta.name or ""),
            ("tags", " ".join(meta.tags)),
            ("segments", "" if meta.segments is None else str(meta.segments)),
            ("updated", _moment(meta.updated_at, now_ms)),
            ("wakes", _moment(meta.wake_at, now_ms)),
            ("blocked", _blocked(meta)),
            ("deaths", _in_a_row(meta)),
            ("parent", meta.parent_run_id or ""),
        ]
    lines.append(("lease", _lease(inspection, now_ms)))
    if timeline is not None:
        lines += [
            ("arguments", _short(timeline.args) if timeline.args_provided else ""),
            ("result", _result(timeline)),
            ("error", str((timeline.error or {}).get("message", "")) if timeline.error else ""),
            ("", again(inspection.run_id, timeline.error.get("code")) if timeline.error else ""),
            ("waits for", ", ".join(_waiting(call, now_ms) for call in timeline.waiting_for)),
        ]
    return "\n".join(f"{title:<10} {plain(text)}" for title, text in lines if text)


def _workflow(meta: RunMeta) -> str:
    version = "" if meta.workflow_version is None else f", version {meta.workflow_version}"
    return f"{meta.workflow_name}{version}" if meta.workflow_name else "-"


def _blocked(meta: RunMeta) -> str:
    """Say why the present code cannot continue the run, and what to do."""
    blocked = meta.blocked
    if blocked is None or meta.status in TERMINAL_STATUSES:
        return ""
    codes = counted(len(blocked.codes), "version", "versions") + " of the code"
    return (
        f"since {blocked.since}: {codes} could not replay its journal: {blocked.reason}. "
        "Deploy a version that can, or roll back: workers with other code try it by themselves; "
        f"{command_line('resume', meta.run_id)} tries the present code again"
    )


def _in_a_row(meta: RunMeta) -> str:
    count = meta.recoveries or 0
    if not count:
        return ""
    text = f"the last {counted(count, 'segment')} died without a result"
    if count >= SUSPECTED and meta.status not in TERMINAL_STATUSES:
        return f"{text}; suspected: workers execute it last and alone"
    return text


def _result(timeline: Timeline) -> str:
    if timeline.status != "ok":
        return ""
    if not timeline.has_result:
        return "not in this journal: the engine that wrote it keeps it elsewhere"
    return _short(timeline.result)


def _status(inspection: Inspection) -> str:
    meta, timeline = inspection.meta, inspection.timeline
    status = "" if meta is None else meta.status
    if (
        timeline is not None
        and timeline.status is not None
        and status not in {timeline.status, "running"}
    ):
        return f"{status} (the journal says {timeline.status}: run `rulvar runs audit`)"
    return status


def _lease(inspection: Inspection, now_ms: int) -> str:
    lease = inspection.lease
    if not inspection.leases_known:
        return "not shown by this store"
    if lease is None:
        return "none: the run is not held"
    who = f"{lease.owner}, epoch {lease.epoch}"
    if lease.live:
        return f"held by {who}, expires {ago(lease.expires_at, now_ms)}"
    return f"expired {ago(lease.expires_at, now_ms)}, not taken since: {who}"


def _moment(text: str | None, now_ms: int) -> str:
    if text is None:
        return ""
    try:
        return f"{text} ({ago(parse_time(text), now_ms)})"
    except ValueError:
        return text


def _short(value: object) -> str:
    text = json_text(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}... ({len(text)} characters; --json shows all)"


def _waiting(call: TimelineCall, now_ms: int) -> str:
    until = f" until {_moment(call.deadline_at, now_ms)}" if call.deadline_at else ""
    return f"{call.kind} {call.name} (seq {call.seq}){until}"


# --- tenures ----------------------------------------------------------------------------


def _tenures(inspection: Inspection, timeline: Timeline) -> Renderable:
    date = _common_date(timeline)
    lease = inspection.lease
    rows = []
    afterwards = [each.began for each in timeline.tenures[1:]]
    for tenure, after in zip_longest(timeline.tenures, afterwards):
        owner = lease.owner if lease is not None and lease.epoch == tenure.epoch else None
        rows.append(
            (
                "-" if tenure.epoch is None else tenure.epoch,
                f"{tenure.first_seq}-{tenure.last_seq}",
                tenure.entries,
                _clock(tenure.started_at, date),
                _clock(tenure.ended_at, date),
                _what_happened(tenure, owner, after),
            )
        )
    when = f"FROM ({date})" if date else "FROM"
    return columns(("EPOCH>", "SEQ", "ENTRIES>", when, "TO", "WHAT HAPPENED"), rows)


def _what_happened(tenure: Tenure, owner: str | None, after: str | None) -> str:
    silence = "" if tenure.silence_ms is None else f" after {span(tenure.silence_ms)} of silence"
    began = {
        "started": "started the run",
        "resumed": f"resumed the run{silence}",
        "took-over": f"TOOK OVER{silence}",
        "handed-over": f"continued after a clean hand-over{silence}",
        "went-on": f"continued: its lease had expired and was not taken{silence}",
        "answered": f"from outside: {_names(tenure.answers)}",
    }[tenure.began]
    parts = [f"{owner}: {began}" if owner is not None else began]
    if tenure.finished_for_others:
        parts.append(f"repeated the unfinished steps: {_names(tenure.finished_for_others)}")
    if tenure.settled is not None:
        parts.append(f"settled {tenure.settled}")
    elif tenure.began != "answered":
        ended = {None: "not settled yet", "handed-over": "handed the run over"}
        parts.append(ended.get(after, "never settled"))
        if tenure.unfinished:
            parts.append(f"unfinished: {_names(tenure.unfinished)}")
    return "; ".join(parts)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _verdict(timeline: Timeline) -> list[Renderable]:
    verdict = ""
    if timeline.epochs_fall_at is not None:
        verdict = (
            f"entry {timeline.epochs_fall_at} has a lower epoch than an entry before it: a write "
            "under a dead lease was accepted; this journal is damaged"
        )
    elif timeline.takeovers:
        verdict = (
            "epochs never fall along this journal: no superseded owner wrote after its successor"
        )
    return [verdict] if verdict else []


_ENDED = {
    "lease-expired": "its lease expired",
    "process-gone": "its process ended",
    "unknown": "unknown",
}


def _deaths(timeline: Timeline) -> Renderable:
    rows = [
        (
            death.segment,
            death.owner or "-",
            death.last_seen_at or "-",
            _ENDED.get(death.ended, death.ended),
            _names(death.under_way) or "nothing",
        )
        for death in timeline.deaths[-_MOST_DEATHS:]
    ]
    return columns(("SEGMENT>", "OWNER", "LAST SEEN", "CAUSE", "STEPS IN PROGRESS"), rows)


# --- calls and blobs --------------------------------------------------------------------


def _calls(timeline: Timeline) -> Renderable:
    date = _common_date(timeline)
    rows = [
        (
            call.seq,
            call.kind,
            _call_name(call),
            call.status,
            _clock(call.started_at, date),
            "" if call.took_ms is None else span(call.took_ms),
            _epochs(call),
            call.error or "",
        )
        for call in timeline.calls
    ]
    titles = ["SEQ>", "KIND", "CALL", "STATUS", "BEGAN", "TOOK>", "EPOCH", "ERROR"]
    if not any(call.error for call in timeline.calls):
        titles.pop()
        rows = [row[:-1] for row in rows]  # type: ignore[misc] # one column narrower
    return columns(titles, rows, styles=_STYLES)


def _call_name(call: TimelineCall) -> str:
    name = call.name if call.ordinal == 0 else f"{call.name} #{call.ordinal}"
    name = f"{call.scope}/{name}" if call.scope else name
    return name if call.attempts == 1 else f"{name} (attempt {call.attempts})"


def _epochs(call: TimelineCall) -> str:
    begun = "-" if call.begun_under is None else str(call.begun_under)
    if call.answered_under is None or call.answered_under == call.begun_under:
        return begun
    what = "repeated under" if call.kind == "step" else "answered under"
    return f"{begun}, {what} {call.answered_under}"


def _blobs(inspection: Inspection) -> Renderable:
    prefix = f"{inspection.run_id}/"
    rows = [
        (
            blob.ref.removeprefix(prefix),
            size(blob.size_bytes),
            "" if blob.stored_at is None else format_time(blob.stored_at),
        )
        for blob in inspection.blobs
    ]
    return columns(("NAME", "SIZE>", "STORED"), rows)


def _common_date(timeline: Timeline) -> str | None:
    """Return the one day on which everything happened, if it is one."""
    times: list[str | None] = []
    for tenure in timeline.tenures:
        times += [tenure.started_at, tenure.ended_at]
    for call in timeline.calls:
        times += [call.started_at, call.ended_at]
    dates = {time[:_DATE_END] for time in times if time is not None}
    return dates.pop() if len(dates) == 1 else None


def _clock(text: str | None, date: str | None) -> str:
    if text is None:
        return ""
    return text.removeprefix(f"{date}T").removesuffix("Z") if date else text
