"""The certificate as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.conformance.certificate import Certificate, Result
    from rulvar.conformance.clauses import Clause

__all__ = ["clauses_page", "listing", "report", "verdict"]

_FAMILIES = {
    "A": "journals",
    "M": "rows",
    "D": "deletion",
    "L": "leases",
    "F": "the fence",
    "T": "transcripts",
    "I": "ids",
    "E": "errors",
    "C": "declarations",
    "P": "processes",
    "B": "waiting",
    "X": "the model",
}


def verdict(certificate: Certificate) -> str:
    """Return the verdict in one sentence."""
    claim = " + ".join(certificate.claim)
    if certificate.conformant:
        return f"CONFORMANT: {certificate.store} keeps every MUST of {claim}"
    if certificate.ran == 0:
        return f"NOT CONFORMANT: no clause was tried on {certificate.store}"
    if not certificate.problems and not certificate.complete:
        return f"passed what was asked for ({certificate.ran} clauses); no certificate of {claim}"
    return (
        f"NOT CONFORMANT: {certificate.store} does not keep {claim}: "
        f"{len(certificate.problems)} clauses"
    )


def report(certificate: Certificate) -> str:
    """Return the whole report: families, what failed with its timeline, and the verdict."""
    return "\n".join(_lines(certificate))


def _lines(certificate: Certificate) -> Iterator[str]:
    yield f"store    {certificate.store}"
    yield f"claim    {', '.join(certificate.claim)}; its state reaches: {certificate.reach}"
    yield f"offers   {', '.join(certificate.capabilities) or 'no capability'}"
    for note in certificate.notes:
        yield f"note     {note}"
    yield ""
    yield f"{'':14}{'passed':>8}{'failed':>8}{'error':>8}{'not verified':>14}{'not claimed':>13}"
    for family, title in _FAMILIES.items():
        mine = [each for each in certificate.results if each.clause_id.startswith(family)]
        if mine:
            yield _row(title, mine)
    yield _row("all", certificate.results)
    yield ""
    for result in certificate.results:
        if result.outcome in {"failed", "error"}:
            yield from ("-" * 78, f"{result.outcome.upper()} {result.story}", "")
    for result in certificate.results:
        if result.outcome == "not verified":
            yield f"NOT VERIFIED {result.clause_id} ({result.strength}): {result.reason}"
    unclaimed = sorted({r.reason for r in certificate.results if r.outcome == "not claimed"})
    for reason in unclaimed:
        number = sum(r.reason == reason for r in certificate.results)
        yield f"not claimed: {number} clauses, as {reason}"
    timed = sum(result.timed and result.ran for result in certificate.results)
    if timed:
        yield f"timed: {timed} clauses waited for the machine's clock"
    yield from _durability(certificate)
    versions = ", ".join(f"{name} {found}" for name, found in certificate.versions.items())
    yield f"{certificate.duration_s:.1f} s, seed {certificate.seed}, {versions}"
    yield verdict(certificate)


def _durability(certificate: Certificate) -> Iterator[str]:
    deaths = certificate.deaths
    tried = ", ".join(f"{result.clause_id} {result.outcome}" for result in deaths)
    yield f"durability, a process dies: {f'tested: {tried}' if deaths else 'not tested'}"
    said = certificate.durability
    stated = "not stated" if said is None else f"by configuration: the store says {said!r}"
    yield f"durability, power is lost:  {stated}; this kit cuts no power"


def _row(title: str, results: Iterable[Result]) -> str:
    outcomes = [result.outcome for result in results]
    counts = [
        outcomes.count(each)
        for each in ("passed", "failed", "error", "not verified", "not claimed")
    ]
    shown = [str(count) if count else "." for count in counts]
    widths = (8, 8, 8, 14, 13)
    return f"{title:14}" + "".join(f"{s:>{w}}" for s, w in zip(shown, widths, strict=True))


def listing(clauses: Iterable[Clause]) -> str:
    """Return the catalogue as text: id, strength, level and sentence."""
    rows = list(clauses)
    width = max((len(clause.id) for clause in rows), default=0)
    return "\n".join(
        f"{clause.id:<{width}}  {clause.strength:<6}  {clause.level:<11}  {clause.sentence}"
        for clause in rows
    )


def clauses_page(clauses: Iterable[Clause]) -> str:
    """Return the catalogue as a Markdown page."""
    everything = list(clauses)
    lines = [
        "# The clauses",
        "",
        "Made from the kit by `python scripts/write_clauses.py`; a test holds the two equal.",
        f"{len(everything)} clauses. [Certifying a store](conformance.md) says how they are tried.",
        "*Level* is what a store claims for the clause to count, *needs* an optional capability or",
        "how far the state must reach.",
    ]
    for family, title in _FAMILIES.items():
        mine = [clause for clause in everything if clause.id.startswith(family)]
        if not mine:
            continue
        lines += ["", f"## {family}: {title}", ""]
        lines += [
            "| clause | sentence | level | needs | source |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [_page_row(clause) for clause in mine]
    return "\n".join(lines) + "\n"


def _page_row(clause: Clause) -> str:
    needs = [clause.capability] if clause.capability else []
    if clause.reach.value != "object":
        needs.append({"process": "two handles", "shared": "two processes"}[clause.reach.value])
    strength = "" if clause.strength == "MUST" else f" ({clause.strength})"
    cells = (
        f"`{clause.id}`{strength}",
        clause.sentence,
        str(clause.level),
        ", ".join(needs),
        clause.source,
    )
    return f"| {' | '.join(cells)} |"
