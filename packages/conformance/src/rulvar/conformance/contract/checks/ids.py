"""Ids at the front door: hostile ones are kept apart, malformed ones are refused (family I)."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.core.errors import ConfigError
from rulvar.core.records import Lease, RunFilter, RunMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rulvar.conformance.harness.actors import Actor
    from rulvar.conformance.harness.check_context import CheckContext

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="Ids")

_ENDINGS = (
    "a",
    "A",
    "a ",
    " a",
    "a.",
    ".a",
    "a..",
    "a%",
    "a_",
    "a*",
    "a?",
    "a:b",
    "a\\b",
    "a'b",
    'a"b',
    "a;--",
    "a|b",
    "a<b>",
    "a&b=c",
    "a%2Fb",
    "a\u00a0",
    "a\u200b",
    "a\u2028",
    "\u202ea",
    "\ufeff",
    unicodedata.normalize("NFC", "e\u0301"),
    unicodedata.normalize("NFD", "\u00e9"),
    "stra\u00dfe",
    "strasse",
    "\u0130",
    "i\u0307",
    "\uff41",
    "\U0001f600",
    "0",
    "00",
    "1e3",
    "1000",
    "null",
    "CON",
    "con.txt",
    "nul",
    "~",
    "-rf",
    "$HOME",
    "{}",
)


@CLAUSES.clause("I-apart", "Ids that differ in any byte are different runs.")
def _apart(check: CheckContext) -> None:
    worker = check.actor("worker")
    runs = [check.run_id(ending) for ending in _ENDINGS]
    written = {}
    for run in runs:
        written[run] = (worker.append(run, 0), worker.put_meta(run))
        if check.has_blobs:
            worker.put(f"{run}/x", run.encode())
    listed = [row.run_id for row in worker.journal.list_runs(None) if row.run_id in written]
    check.equal("the runs listed", listed, sorted(runs, key=str.encode))
    for run in runs:
        check.equal(f"the journal of {run!r}", worker.load(run), (written[run][0],))
        if check.has_blobs:
            check.equal(f"the blob of {run!r}", worker.get(f"{run}/x"), run.encode())
            check.equal(f"the refs of {run!r}", worker.list_refs(run), (f"{run}/x",))
    for run in runs[::2]:
        worker.delete(run)
    for number, run in enumerate(runs):
        expected = () if number % 2 == 0 else (written[run][0],)
        check.equal(f"the journal of {run!r}", worker.load(run), expected)


@CLAUSES.clause("I-leases-apart", "So are their leases.", level=Level.LEASABLE)
def _leases_apart(check: CheckContext) -> None:
    worker = check.actor("worker")
    leases = [worker.acquire(check.run_id(ending)) for ending in _ENDINGS]
    for lease in leases[::2]:
        worker.release(lease)
    for lease in leases[1::2]:
        worker.append(lease.run_id, 0, lease=lease)
    for lease in leases[::2]:
        worker.refused("released").append(lease.run_id, 0, lease=lease)


@CLAUSES.clause("I-owners", "An owner is compared byte for byte.", level=Level.LEASABLE)
def _owners(check: CheckContext) -> None:
    worker = check.actor("worker")
    owners = ("o", "\u00e9", "a%", "x" * 200, "a/b", "stra\u00dfe", "7", "1e3", "0x10", "null")
    for number, owner in enumerate(owners):
        run = check.run_id(f"run-{number}")
        lease = worker.acquire(run, owner)
        check.equal("the owner", lease.owner, owner)
        for other in _near(owner):
            forged = Lease(run_id=run, owner=other, epoch=lease.epoch)
            worker.refused("unknown").append(run, 0, lease=forged)
        worker.append(run, 0, lease=lease)


_LIKE_NUMBERS = {"7": ("007", "7.0", "+7"), "1e3": ("1000", "1E3"), "0x10": ("16",)}


def _near(text: str) -> Iterator[str]:
    for other in (
        text.upper(),
        f"{text} "[:200],
        text + "%" if len(text) < 200 else "%",  # noqa: PLR2004
        unicodedata.normalize("NFD", text),
        unicodedata.normalize("NFC", text),
        text.casefold(),
        *_LIKE_NUMBERS.get(text, ()),
    ):
        if other != text:
            yield other


@CLAUSES.clause("I-longest", "Ids of 200 code points are taken, of one byte each or four.")
def _longest(check: CheckContext) -> None:
    worker = check.actor("worker")
    stem = check.run_id("l")
    for filling in ("x", "\u00e9", "\U0001f600"):
        run = stem + filling * (200 - len(stem))
        written = worker.append(run, 0)
        worker.put_meta(run)
        check.equal("the journal", worker.load(run), (written,))
        worker.raising(ConfigError).append(run + filling, 0)


_WRONG: tuple[object, ...] = (
    "",
    ".",
    "..",
    "a/b",
    "/",
    "a\0b",
    "a\n",
    "\x1f",
    "\x7f",
    "\x80",
    "a\ud800",
    "x" * 201,
    None,
    5,
    b"bytes",
    ("a",),
)


@CLAUSES.clause(
    "I-refused", "A malformed run id is refused as ConfigError by every call, and changes nothing."
)
def _refused(check: CheckContext) -> None:
    strict = check.actor("worker").raising(ConfigError)
    check.actor("worker").append(check.run_id(), 0)
    for wrong in _WRONG:
        for what, call in _calls(check, strict, wrong).items():
            strict.call(f"{what} of {wrong!r}", call)


def _calls(check: CheckContext, actor: Actor, wrong: object) -> dict[str, Callable[[], object]]:
    from rulvar.conformance.harness.actors import record  # noqa: PLC0415

    run = str(wrong) if not isinstance(wrong, str) else wrong
    del run
    journal, blobs = actor.journal, actor.transcripts
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: journal.append(wrong, record(0, check.mark())),  # type: ignore[arg-type]
        "load": lambda: journal.load(wrong),  # type: ignore[arg-type]
        "delete": lambda: journal.delete(wrong),  # type: ignore[arg-type]
        "put_meta": lambda: journal.put_meta(
            RunMeta(run_id=wrong, status="ok", updated_at="2026-01-01T00:00:00.000Z")  # type: ignore[arg-type]
        ),
    }
    if wrong is not None:
        calls["list_runs"] = lambda: journal.list_runs(RunFilter(after_run_id=wrong))  # type: ignore[arg-type]
    if check.claims(Level.LEASABLE):
        calls["acquire"] = lambda: journal.acquire(wrong, "owner")  # type: ignore[arg-type]
        lease = Lease(run_id=wrong, owner="owner", epoch=1)  # type: ignore[arg-type]
        calls["renew"] = lambda: journal.renew(lease)
        calls["release"] = lambda: journal.release(lease)
    if check.has_blobs:
        calls["list_refs"] = lambda: blobs.list_refs(wrong)  # type: ignore[arg-type]
    return calls


@CLAUSES.clause(
    "I-refs-refused",
    "A malformed ref is refused as ConfigError, and changes nothing.",
    level=Level.TRANSCRIPTS,
)
def _refs_refused(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    worker.put(f"{run}/ok")
    strict = worker.raising(ConfigError)
    for wrong in (
        run,
        f"{run}/",
        f"/{run}/x",
        f"{run}//x",
        f"{run}/.",
        f"{run}/../x",
        f"../{run}/x",
        f"{run}/a\0",
        f"{run}/a\n",
        f"{run}/\ud800",
        f"{run}/{'x' * 201}",
        f"{run}/{'/'.join(['y' * 100] * 11)}",
        "",
        None,
        7,
        b"a/b",
    ):
        for what, call in (
            ("put", lambda ref=wrong: worker.transcripts.put(ref, b"x")),
            ("get", lambda ref=wrong: worker.transcripts.get(ref)),
            ("delete", lambda ref=wrong: worker.transcripts.delete(ref)),
        ):
            strict.call(f"{what}({wrong!r})", call)


@CLAUSES.clause(
    "I-leases-refused",
    "A malformed owner or lease is refused as ConfigError.",
    level=Level.LEASABLE,
)
def _leases_refused(check: CheckContext) -> None:
    run = check.run_id()
    worker = check.actor("worker")
    free = check.run_id("free")
    live = worker.acquire(run)
    strict = worker.raising(ConfigError)
    for owner in ("", "x" * 201, "a\0", "\ud800", None, 5):
        for of in (run, free):
            strict.call(
                f"acquire({of!r}, {owner!r})",
                lambda each=owner, of=of: worker.journal.acquire(of, each),  # type: ignore[misc]
            )
    worker.acquire(free)
    for lease in (
        "lease",
        (run, "worker", live.epoch),
        {"run_id": run},
        Lease(run_id=run, owner="", epoch=1),
        Lease(run_id=run, owner="worker", epoch=-1),
        Lease(run_id=run, owner="worker", epoch=2**53),
        Lease(run_id=run, owner="worker", epoch=True),
        Lease(run_id=run, owner="worker", epoch=1.0),  # type: ignore[arg-type]
        Lease(run_id=run, owner="worker", epoch=str(live.epoch)),  # type: ignore[arg-type]
    ):
        for what, call in (
            ("append", lambda each=lease: strict.append(run, 0, lease=each)),
            ("renew", lambda each=lease: worker.journal.renew(each)),
            ("release", lambda each=lease: worker.journal.release(each)),
        ):
            if what != "append":
                strict.call(f"{what}({lease!r})", call)
            elif isinstance(lease, Lease):
                call()
    worker.append(run, 0, lease=live)
