"""`rulvar fencing check`: the start-up assertion as a gate for a deployment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from rulvar.cli.exit_codes import ExitStatus
from rulvar.cli.options import output_options, pass_output, store_option
from rulvar.cli.output import plain
from rulvar.cli.store_access import opened_stores, store_url
from rulvar.cli.view.tables import columns, stacked
from rulvar.core.capabilities import fencing_domain_of, has_leases
from rulvar.core.errors import ConfigError
from rulvar.core.fencing import assert_fenced_writes, has_fenced_writes, probe_fencing
from rulvar.core.formatting import with_article

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulvar.cli.output import Output
    from rulvar.cli.view.tables import Renderable
    from rulvar.core.fencing import FencingReport, ProbeFinding
    from rulvar.core.stores import Stores

__all__ = ["fencing"]

_STYLES = {"refused": "green", "landed": "red", "failed": "red", "undeclared": "yellow"}


@click.group("fencing")
@output_options
def fencing() -> None:
    """Check that a store fences every write.

    \b
    Examples:
      rulvar fencing check --store sqlite:///runs.db
      rulvar fencing check --probe
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@fencing.command("check")
@click.option(
    "--probe",
    is_flag=True,
    help="Also test it: on a throw-away run, offer dead leases to every mutation.",
)
@store_option
@output_options
@pass_output
@click.pass_context
def check(context: click.Context, output: Output, *, probe: bool, store: str | None) -> None:
    """Check that both stores declare the fence on every mutation, and keep it.

    First the declared markers: a deployment whose stores do not both declare fenced_writes,
    or whose two stores commit in different databases, is not fenced. With --probe the
    fence is tested: leases that are superseded, released, forged or for another run are
    offered to every mutation, and each must be refused. The probe leaves nothing behind but
    the epochs of its throw-away runs. A store that does not exist is created, so that
    the check can run before the first start.

    Status 0 means fenced, 1 not fenced, 2 that nothing could be checked, 5 that the store
    could not answer (busy is not the same as not fenced).

    \b
    Examples:
      rulvar fencing check --store sqlite:///runs.db
      rulvar fencing check --probe --json && rulvar worker
    """  # noqa: D301
    # The check must pass before the first start: where there is no file, it is created.
    with opened_stores(store, read_only=not probe, or_make=True) as stores:
        verdict = _declared(str(store_url(store)), stores)
        if probe and has_leases(stores.journal):
            verdict = replace(verdict, report=probe_fencing(stores))
    output.show(verdict.document(), verdict.text)
    context.exit(ExitStatus.DONE if verdict.fenced else ExitStatus.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What was declared, and what the probe saw; ``refusal`` is why that is not enough."""

    url: str
    journal: str
    transcripts: str
    journal_declared: bool
    transcripts_declared: bool
    journal_domain: str | None
    transcripts_domain: str | None
    refusal: str | None
    report: FencingReport | None = None

    @property
    def fenced(self) -> bool:
        """Whether nothing speaks against it."""
        return self.refusal is None and (self.report is None or self.report.fenced)

    def document(self) -> dict[str, object]:
        """Return the JSON form."""
        report = self.report
        return {
            "fenced": self.fenced,
            "store": self.url,
            "reason": self.refusal,
            "declared": {
                "journal": self.journal_declared,
                "transcripts": self.transcripts_declared,
            },
            "fencing_domain": {
                "journal": self.journal_domain,
                "transcripts": self.transcripts_domain,
            },
            "probe": None
            if report is None
            else {
                "run_id": report.run_id,
                "fenced": report.fenced,
                "mutations": dict(report.mutations),
                "findings": [asdict(each) | {"ok": each.ok} for each in report.findings],
            },
        }

    def text(self) -> Renderable:
        """Return the form for people."""
        lines = [
            f"store        {plain(self.url)}",
            f"journal      {plain(self.journal)}: {_word(declared=self.journal_declared)}",
            f"transcripts  {plain(self.transcripts)}: {_word(declared=self.transcripts_declared)}",
            f"domain       {self._domain()}",
        ]
        parts: list[Renderable] = ["\n".join(lines)]
        if self.report is not None:
            parts += ["", _matrix(self.report.findings)]
            parts += [_complaint(each) for each in self.report.problems]
        return stacked([*parts, "", self._conclusion()])

    def _domain(self) -> str:
        if self.journal_domain is None or self.transcripts_domain is None:
            return "not declared: whether both commit in one transaction is not known"
        if self.journal_domain == self.transcripts_domain:
            return "one: both stores commit in the same database"
        return "two: the stores commit in different databases"

    def _conclusion(self) -> str:
        if self.refusal is not None:
            return f"NOT FENCED: {plain(self.refusal)}"
        if self.report is None:
            return "fenced, as declared (--probe tests it)"
        if self.report.fenced:
            return "fenced: declared, and every mutation under a dead lease was refused"
        return "NOT FENCED: declared, but the probe failed: do not deploy this store"


def _declared(url: str, stores: Stores) -> _Verdict:
    refusal = None
    try:
        assert_fenced_writes(stores)
    except ConfigError as error:
        refusal = str(error)
    return _Verdict(
        url=url,
        journal=_kind(stores.journal),
        transcripts=_kind(stores.transcripts),
        journal_declared=has_fenced_writes(stores.journal),
        transcripts_declared=has_fenced_writes(stores.transcripts),
        journal_domain=fencing_domain_of(stores.journal),
        transcripts_domain=fencing_domain_of(stores.transcripts),
        refusal=refusal,
    )


def _kind(store: object) -> str:
    return f"{type(store).__module__}.{type(store).__qualname__}"


def _word(*, declared: bool) -> str:
    return "declares fenced_writes" if declared else "does NOT declare fenced_writes"


def _matrix(findings: Sequence[ProbeFinding]) -> Renderable:
    """Return mutations down, leases across, and what came of each."""
    leases = list(dict.fromkeys(each.lease for each in findings))
    mutations = list(dict.fromkeys(each.mutation for each in findings))
    cells = {(each.mutation, each.lease): each.outcome for each in findings}
    rows = [
        (mutation, *(cells.get((mutation, lease), "") for lease in leases))
        for mutation in mutations
    ]
    return columns(["MUTATION", *(lease.upper() for lease in leases)], rows, styles=_STYLES)


def _complaint(finding: ProbeFinding) -> str:
    text = (
        f"{finding.mutation} under {with_article(finding.lease)} lease: {finding.outcome}, not "
        f"{finding.expected}"
    )
    return plain(f"{text}: {finding.detail}" if finding.detail else text)
