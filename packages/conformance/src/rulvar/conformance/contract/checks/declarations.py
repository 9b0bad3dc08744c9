"""What a store declares is there, and takes the calls that the SPI makes (family C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.contract.claims import CAPABILITIES, missing_methods, takes
from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.actors import record
from rulvar.core.capabilities import (
    busy_timeout_ms_of,
    declares_fenced_writes,
    fencing_domain_of,
    has_leases,
    lease_ttl_ms_of,
)
from rulvar.core.checks import MAX_TTL_MS
from rulvar.core.records import Lease, RunFilter, RunMeta

if TYPE_CHECKING:
    from rulvar.conformance.harness.check_context import CheckContext

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Capabilities")

_LEASE = Lease(run_id="run", owner="owner", epoch=1)
_META = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")


def _require(
    check: CheckContext, store: object, name: str, *arguments: object, **options: object
) -> None:
    shape = ", ".join([*(type(each).__name__ for each in arguments), *(f"{k}=" for k in options)])
    method = getattr(store, name, None)
    check.require(callable(method), f"a method {name}", "none")
    check.require(takes(method, *arguments, **options), f"{name}({shape}) is taken", "it is not")


@CLAUSES.clause("C-journal", "The journal store takes every call of the SPI.")
def _journal(check: CheckContext) -> None:
    store = check.stores.journal
    wanted = [each for each in missing_methods(check.stores) if each.startswith("journal.")]
    check.equal("what is missing", wanted, [])
    _require(check, store, "append", "run", record(0, "x"))
    _require(check, store, "load", "run")
    _require(check, store, "put_meta", _META)
    _require(check, store, "list_runs")
    _require(check, store, "list_runs", RunFilter())
    _require(check, store, "delete", "run")


@CLAUSES.clause(
    "C-transcripts", "The transcript store takes every call of the SPI.", level=Level.TRANSCRIPTS
)
def _transcripts(check: CheckContext) -> None:
    store = check.stores.transcripts
    _require(check, store, "put", "run/x", b"")
    _require(check, store, "get", "run/x")
    _require(check, store, "list_refs", "run")
    _require(check, store, "delete", "run/x")


@CLAUSES.clause(
    "C-leases",
    "A leasable store has acquire, renew and release, and its append takes a lease.",
    level=Level.LEASABLE,
)
def _leases(check: CheckContext) -> None:
    store = check.stores.journal
    check.require(has_leases(store), "acquire, renew and release", "not all of them")
    _require(check, store, "acquire", "run", "owner")
    _require(check, store, "renew", _LEASE)
    _require(check, store, "release", _LEASE)
    _require(check, store, "append", "run", record(0, "x"), lease=_LEASE)
    _require(check, store, "append", "run", record(0, "x"), lease=None)


@CLAUSES.clause(
    "C-marker",
    "A fenced journal store declares fenced_writes as True itself, and takes the lease.",
    source="The marker",
    level=Level.FENCED,
)
def _marker(check: CheckContext) -> None:
    store = check.stores.journal
    check.require(
        declares_fenced_writes(store),
        "fenced_writes is True",
        repr(getattr(store, "fenced_writes", "missing")),
    )
    _require(check, store, "put_meta", _META, lease=_LEASE)
    _require(check, store, "put_meta", _META, lease=None)
    _require(check, store, "delete", "run", lease=_LEASE)
    _require(check, store, "delete", "run", lease=None)


@CLAUSES.clause(
    "C-marker-pair",
    "Both stores of a fenced pair declare the marker, and take the lease.",
    source="The marker",
    level=Level.FENCED_PAIR,
)
def _marker_pair(check: CheckContext) -> None:
    store = check.stores.transcripts
    for part in (check.stores.journal, store):
        check.require(
            declares_fenced_writes(part),
            f"{type(part).__name__}.fenced_writes is True",
            repr(getattr(part, "fenced_writes", "missing")),
        )
    _require(check, store, "put", "run/x", b"", lease=_LEASE)
    _require(check, store, "put", "run/x", b"", lease=None)
    _require(check, store, "delete", "run/x", lease=_LEASE)
    _require(check, store, "delete", "run/x", lease=None)


@CLAUSES.clause(
    "C-unfenced",
    "A store without the marker is not mistaken for a fenced one.",
    source="The marker",
)
def _unfenced(check: CheckContext) -> None:
    for part, level in (
        (check.stores.journal, Level.FENCED),
        (check.stores.transcripts, Level.FENCED_PAIR),
    ):
        marker: object = getattr(part, "fenced_writes", None)
        check.require(
            marker is None or isinstance(marker, bool),
            f"{type(part).__name__}.fenced_writes is True, False or not there",
            repr(marker),
        )
        if check.claims(level):
            check.require(marker is True, "the marker of what is claimed", repr(marker))


@CLAUSES.clause("C-stable", "What is declared is the same on every handle, and after every call.")
def _stable(check: CheckContext) -> None:
    from rulvar.conformance.contract.claims import declared_by  # noqa: PLC0415

    before = declared_by(check.stores)
    worker = check.actor("worker")
    worker.append(check.run_id(), 0)
    worker.load(check.run_id())
    check.equal("what is declared", declared_by(check.stores), before)
    for name in CAPABILITIES:
        for part in (check.stores.journal, check.stores.transcripts):
            value: object = getattr(part, name, None) if name.islower() else None
            check.require(
                value is None or isinstance(value, int | str), f"{name} as a value", repr(value)
            )


@CLAUSES.clause(
    "C-methods", "A capability is a method: none of their names is taken by anything else."
)
def _methods(check: CheckContext) -> None:
    for name in (
        "get_meta",
        "load_after",
        "get_lease",
        "list_leases",
        "seize",
        "raise_epoch",
        "revive",
        "list_run_ids",
        "delete_whole_run",
        "close",
        "acquire",
        "renew",
        "renew_all",
        "release",
    ):
        value: object = getattr(check.stores.journal, name, None)
        check.require(value is None or callable(value), f"{name} is a method or not there", value)


@CLAUSES.clause("C-optional", "Every capability that is offered takes the calls of the SPI.")
def _optional(check: CheckContext) -> None:
    calls: dict[str, tuple[object, ...]] = {
        "get_meta": ("run",),
        "load_after": ("run", -1, 10),
        "get_lease": ("run",),
        "list_leases": (None, 10),
        "seize": ("run", "owner"),
        "raise_epoch": ("run", 1),
        "renew_all": ((_LEASE,),),
        "revive": (_LEASE,),
        "list_run_ids": (None, 10),
        "delete_whole_run": ("run",),
        "close": (),
    }
    for name, arguments in calls.items():
        if callable(getattr(check.stores.journal, name, None)):
            _require(check, check.stores.journal, name, *arguments)
    if callable(getattr(check.stores.journal, "delete_whole_run", None)):
        _require(check, check.stores.journal, "delete_whole_run", "run", lease=None)
    if callable(getattr(check.stores.journal, "seize", None)):
        _require(check, check.stores.journal, "seize", "run", "owner", over=_LEASE)
    if callable(getattr(check.stores.transcripts, "blob_info", None)):
        _require(check, check.stores.transcripts, "blob_info", "run/x")


@CLAUSES.clause(
    "C-values",
    "lease_ttl_ms, busy_timeout_ms and fencing_domain are what they say.",
    level=Level.LEASABLE,
)
def _values(check: CheckContext) -> None:
    journal = check.stores.journal
    for name, found in (
        ("lease_ttl_ms", lease_ttl_ms_of(journal)),
        ("busy_timeout_ms", busy_timeout_ms_of(journal)),
        ("fencing_domain", fencing_domain_of(journal)),
    ):
        raw: object = getattr(journal, name, None)
        check.require(raw is None or found is not None, f"{name} of its type, or none", repr(raw))
    ttl = lease_ttl_ms_of(journal)
    check.require(ttl is None or 1 <= ttl <= MAX_TTL_MS, "a ttl of 1 to 2147483647 ms", ttl)


@CLAUSES.clause(
    "C-ttl",
    "A lease lives as long as lease_ttl_ms says.",
    source="Attributes",
    level=Level.LEASABLE,
    capability="lease_ttl_ms",
    timed=True,
)
def _ttl(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    ttl = lease_ttl_ms_of(check.stores.journal) or 0
    lease = worker.acquire(run)
    if check.waits:
        check.pass_ms(ttl // 3)
        worker.append(run, 0, lease=lease)
        check.pass_ms(ttl - ttl // 3 + 25)
    else:
        check.pass_ms(ttl - 1)
        worker.append(run, 0, lease=lease)
        check.pass_ms(1)
    worker.refused("expired").append(run, 1, lease=lease)
