"""What a store declares is there, and takes the calls that the SPI makes (family C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulvar.conformance.contract.claims import CAPABILITIES, missing_methods, takes
from rulvar.conformance.contract.clauses import Level, Section
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
    from rulvar.conformance.harness.check_context import Trial

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Capabilities")

_LEASE = Lease(run_id="run", owner="owner", epoch=1)
_META = RunMeta(run_id="run", status="ok", updated_at="2026-01-01T00:00:00.000Z")


def _require(trial: Trial, store: object, name: str, *arguments: object, **options: object) -> None:
    shape = ", ".join([*(type(each).__name__ for each in arguments), *(f"{k}=" for k in options)])
    method = getattr(store, name, None)
    trial.require(callable(method), f"a method {name}", "none")
    trial.require(takes(method, *arguments, **options), f"{name}({shape}) is taken", "it is not")


@CLAUSES.clause("C-journal", "The journal store takes every call of the SPI.")
def _journal(trial: Trial) -> None:
    store = trial.stores.journal
    wanted = [each for each in missing_methods(trial.stores) if each.startswith("journal.")]
    trial.equal("what is missing", wanted, [])
    _require(trial, store, "append", "run", record(0, "x"))
    _require(trial, store, "load", "run")
    _require(trial, store, "put_meta", _META)
    _require(trial, store, "list_runs")
    _require(trial, store, "list_runs", RunFilter())
    _require(trial, store, "delete", "run")


@CLAUSES.clause(
    "C-transcripts", "The transcript store takes every call of the SPI.", level=Level.TRANSCRIPTS
)
def _transcripts(trial: Trial) -> None:
    store = trial.stores.transcripts
    _require(trial, store, "put", "run/x", b"")
    _require(trial, store, "get", "run/x")
    _require(trial, store, "list_refs", "run")
    _require(trial, store, "delete", "run/x")


@CLAUSES.clause(
    "C-leases",
    "A leasable store has acquire, renew and release, and its append takes a lease.",
    level=Level.LEASABLE,
)
def _leases(trial: Trial) -> None:
    store = trial.stores.journal
    trial.require(has_leases(store), "acquire, renew and release", "not all of them")
    _require(trial, store, "acquire", "run", "owner")
    _require(trial, store, "renew", _LEASE)
    _require(trial, store, "release", _LEASE)
    _require(trial, store, "append", "run", record(0, "x"), lease=_LEASE)
    _require(trial, store, "append", "run", record(0, "x"), lease=None)


@CLAUSES.clause(
    "C-marker",
    "A fenced journal store declares fenced_writes as True itself, and takes the lease.",
    source="The marker",
    level=Level.FENCED,
)
def _marker(trial: Trial) -> None:
    store = trial.stores.journal
    trial.require(
        declares_fenced_writes(store),
        "fenced_writes is True",
        repr(getattr(store, "fenced_writes", "missing")),
    )
    _require(trial, store, "put_meta", _META, lease=_LEASE)
    _require(trial, store, "put_meta", _META, lease=None)
    _require(trial, store, "delete", "run", lease=_LEASE)
    _require(trial, store, "delete", "run", lease=None)


@CLAUSES.clause(
    "C-marker-pair",
    "Both stores of a fenced pair declare the marker, and take the lease.",
    source="The marker",
    level=Level.FENCED_PAIR,
)
def _marker_pair(trial: Trial) -> None:
    store = trial.stores.transcripts
    for part in (trial.stores.journal, store):
        trial.require(
            declares_fenced_writes(part),
            f"{type(part).__name__}.fenced_writes is True",
            repr(getattr(part, "fenced_writes", "missing")),
        )
    _require(trial, store, "put", "run/x", b"", lease=_LEASE)
    _require(trial, store, "put", "run/x", b"", lease=None)
    _require(trial, store, "delete", "run/x", lease=_LEASE)
    _require(trial, store, "delete", "run/x", lease=None)


@CLAUSES.clause(
    "C-unfenced",
    "A store without the marker is not mistaken for a fenced one.",
    source="The marker",
)
def _unfenced(trial: Trial) -> None:
    for part, level in (
        (trial.stores.journal, Level.FENCED),
        (trial.stores.transcripts, Level.FENCED_PAIR),
    ):
        marker: object = getattr(part, "fenced_writes", None)
        trial.require(
            marker is None or isinstance(marker, bool),
            f"{type(part).__name__}.fenced_writes is True, False or not there",
            repr(marker),
        )
        if trial.claims(level):
            trial.require(marker is True, "the marker of what is claimed", repr(marker))


@CLAUSES.clause("C-stable", "What is declared is the same on every handle, and after every call.")
def _stable(trial: Trial) -> None:
    from rulvar.conformance.contract.claims import declared_by  # noqa: PLC0415

    before = declared_by(trial.stores)
    worker = trial.actor("worker")
    worker.append(trial.run_id(), 0)
    worker.load(trial.run_id())
    trial.equal("what is declared", declared_by(trial.stores), before)
    for name in CAPABILITIES:
        for part in (trial.stores.journal, trial.stores.transcripts):
            value: object = getattr(part, name, None) if name.islower() else None
            trial.require(
                value is None or isinstance(value, int | str), f"{name} as a value", repr(value)
            )


@CLAUSES.clause(
    "C-methods", "A capability is a method: none of their names is taken by anything else."
)
def _methods(trial: Trial) -> None:
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
        value: object = getattr(trial.stores.journal, name, None)
        trial.require(value is None or callable(value), f"{name} is a method or not there", value)


@CLAUSES.clause("C-optional", "Every capability that is offered takes the calls of the SPI.")
def _optional(trial: Trial) -> None:
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
        if callable(getattr(trial.stores.journal, name, None)):
            _require(trial, trial.stores.journal, name, *arguments)
    if callable(getattr(trial.stores.journal, "delete_whole_run", None)):
        _require(trial, trial.stores.journal, "delete_whole_run", "run", lease=None)
    if callable(getattr(trial.stores.journal, "seize", None)):
        _require(trial, trial.stores.journal, "seize", "run", "owner", over=_LEASE)
    if callable(getattr(trial.stores.transcripts, "blob_info", None)):
        _require(trial, trial.stores.transcripts, "blob_info", "run/x")


@CLAUSES.clause(
    "C-values",
    "lease_ttl_ms, busy_timeout_ms and fencing_domain are what they say.",
    level=Level.LEASABLE,
)
def _values(trial: Trial) -> None:
    journal = trial.stores.journal
    for name, found in (
        ("lease_ttl_ms", lease_ttl_ms_of(journal)),
        ("busy_timeout_ms", busy_timeout_ms_of(journal)),
        ("fencing_domain", fencing_domain_of(journal)),
    ):
        raw: object = getattr(journal, name, None)
        trial.require(raw is None or found is not None, f"{name} of its type, or none", repr(raw))
    ttl = lease_ttl_ms_of(journal)
    trial.require(ttl is None or 1 <= ttl <= MAX_TTL_MS, "a ttl of 1 to 2147483647 ms", ttl)


@CLAUSES.clause(
    "C-ttl",
    "A lease lives as long as lease_ttl_ms says.",
    source="Attributes",
    level=Level.LEASABLE,
    capability="lease_ttl_ms",
    timed=True,
)
def _ttl(trial: Trial) -> None:
    run = trial.run_id()
    worker = trial.actor("worker")
    ttl = lease_ttl_ms_of(trial.stores.journal) or 0
    lease = worker.acquire(run)
    if trial.waits:
        trial.pass_ms(ttl // 3)
        worker.append(run, 0, lease=lease)
        trial.pass_ms(ttl - ttl // 3 + 25)
    else:
        trial.pass_ms(ttl - 1)
        worker.append(run, 0, lease=lease)
        trial.pass_ms(1)
    worker.refused("expired").append(run, 1, lease=lease)
