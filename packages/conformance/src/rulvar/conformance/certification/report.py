"""The certificate as text for people."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from rulvar.core.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rulvar.conformance.certification.certificate import Certificate, Outcome, Result
    from rulvar.conformance.contract.clauses import Clause

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


_STORIES = 5
"""How many failures a report tells whole: the first ones mostly explain the others."""

_WIDTH = 100
_BROKEN = frozenset({"failed", "error"})


def verdict(certificate: Certificate) -> str:
    """Return the verdict in one sentence."""
    store, claim = certificate.store, " + ".join(certificate.claim)
    problems = certificate.problems
    if certificate.ran == 0:
        return f"NOT CONFORMANT: no clause was tried on {store}"
    if problems:
        clauses = "one MUST is" if len(problems) == 1 else f"{len(problems)} MUSTs are"
        return (
            f"NOT CONFORMANT: {store} does not keep {claim}: {clauses} broken or not verified; "
            f"begin with {problems[0].clause_id}"
        )
    lacking = [each.clause_id for each in certificate.results if each.outcome in _BROKEN]
    aside = f"; not kept, and no MUST: {', '.join(lacking)}" if lacking else ""
    if certificate.conformant:
        return f"CONFORMANT: {store} keeps every MUST of {claim}{aside}"
    if not certificate.ok:
        return f"NOT PASSED: nothing of what was asked for{aside}"
    number = certificate.count("passed")
    return (
        f"passed what was asked for ({counted(number, 'clause')}){aside}; no certificate of {claim}"
    )


def report(certificate: Certificate) -> str:
    """Return the whole report: what failed with its timeline, the counts, and the verdict.

    The end is what a terminal shows, so the verdict is the last line and what led to it
    stands right above.
    """
    return "\n".join([*_stories(certificate), *_summary(certificate), verdict(certificate)])


def _stories(certificate: Certificate) -> Iterator[str]:
    broken = [each for each in certificate.results if each.outcome in _BROKEN]
    for result in broken[:_STORIES]:
        yield from ("-" * 78, f"{result.outcome.upper()} {result.story}", "")
    if len(broken) > _STORIES:
        yield "-" * 78
        yield (
            f"{len(broken) - _STORIES} more failed, listed below: --only ID shows one, "
            "--certificate FILE of all"
        )
        yield ""


def _summary(certificate: Certificate) -> Iterator[str]:
    yield from _entry("store", f"{certificate.store}; its state reaches: {certificate.sharing}")
    yield from _entry("claim", ", ".join(certificate.claim))
    yield from _entry("offers", ", ".join(certificate.capabilities) or "no capability")
    for note in certificate.notes:
        yield from _entry("note", note)
    for outcome in ("passed", "failed", "error", "not verified", "not claimed"):
        yield from _outcome(certificate, outcome)
    timed = sum(result.timed and result.ran for result in certificate.results)
    if timed:
        yield from _entry("timed", f"{counted(timed, 'clause')} waited for the machine's clock")
    yield from _durability(certificate)
    versions = ", ".join(f"{name} {found}" for name, found in certificate.versions.items())
    yield from _entry(
        "took", f"{certificate.duration_s:.1f} s, seed {certificate.seed}, {versions}"
    )


def _outcome(certificate: Certificate, outcome: Outcome) -> Iterator[str]:
    found = [result for result in certificate.results if result.outcome == outcome]
    if not found:
        return
    if outcome == "passed":
        families = Counter(result.clause_id[0] for result in found)
        parts = [f"{_FAMILIES[each]} {families[each]}" for each in _FAMILIES if families[each]]
    elif outcome == "not claimed":
        parts = _unclaimed(found)
    else:
        parts = [_name(result) for result in found]
    if outcome == "not verified":
        yield from _entry(outcome, str(len(found)))
        for result in found:
            yield from _entry("", f"{_name(result)}: {result.reason}")
        return
    joined = "; ".join(parts) if outcome == "not claimed" else ", ".join(parts)
    yield from _entry(outcome, f"{len(found)}: {joined}")


def _unclaimed(found: list[Result]) -> list[str]:
    reasons = Counter(result.reason for result in found).most_common()
    start = "the store does not offer "
    lacking = [f"{r.removeprefix(start)} {n}" for r, n in reasons if r.startswith(start)]
    parts = [f"{number} as {reason}" for reason, number in reasons if not reason.startswith(start)]
    return [f"not offered: {', '.join(lacking)}", *parts] if lacking else parts


def _name(result: Result) -> str:
    return result.clause_id + ("" if result.strength == "MUST" else f" ({result.strength})")


def _durability(certificate: Certificate) -> Iterator[str]:
    deaths = certificate.deaths
    tried = ", ".join(f"{result.clause_id} {result.outcome}" for result in deaths)
    yield f"durability, a process dies: {f'tested: {tried}' if deaths else 'not tested'}"
    said = certificate.durability
    stated = "not stated" if said is None else f"by configuration: the store says {said!r}"
    yield f"durability, power is lost:  {stated}; this kit cuts no power"


def _entry(title: str, text: str) -> Iterator[str]:
    """Yield one line of the summary, folded under itself where it is long."""
    lines = textwrap.wrap(text, _WIDTH - 14, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines or [""]):
        yield f"{title if number == 0 else '':<14}{line}"


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
        f"There are {len(everything)} clauses.",
        "[Certifying a store](../stores/certifying.md) says how they are tried.",
        "*Level* is what a store claims for the clause to count, *needs* an optional capability or",
        "how far the state must reach, *source* the part of the contract that the sentence is of.",
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


def _contract_link(heading: str) -> str:
    return f"[{heading}](../contract.md#{heading.lower().replace(' ', '-')})"


def _page_row(clause: Clause) -> str:
    needs = [clause.capability] if clause.capability else []
    if clause.sharing.value != "object":
        needs.append({"process": "two handles", "shared": "two processes"}[clause.sharing.value])
    strength = "" if clause.strength == "MUST" else f" ({clause.strength})"
    cells = (
        f"`{clause.id}`{strength}",
        clause.sentence,
        str(clause.level),
        ", ".join(needs),
        ", ".join(map(_contract_link, clause.source.split(", "))),
    )
    return f"| {' | '.join(cells)} |"
