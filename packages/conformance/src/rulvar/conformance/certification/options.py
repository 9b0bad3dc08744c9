"""What the command lines share: options made into a certification, and its outcome shown."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.certification.progress import Progress
from rulvar.conformance.certification.report import listing, report
from rulvar.conformance.certification.runner import DEADLINE_S, JOBS, certify
from rulvar.conformance.contract.registry import chosen
from rulvar.conformance.harness.outfiles import check_out_file
from rulvar.conformance.harness.store_under_test import StoreAtUrl
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DEADLINE_S", "JOBS", "CertifyOptions", "list_clauses", "run_certification"]


class CertifyOptions:
    """What somebody asked for on a command line."""

    def __init__(
        self,
        url: str,
        *,
        level: Sequence[str] = (),
        only: Sequence[str] = (),
        seed: int | None = None,
        sharing: str | None = None,
        effort: int = 1,
        jobs: int = JOBS,
        deadline_s: float = DEADLINE_S,
        quiet: bool = False,
        json: bool = False,
        certificate: str | None = None,
        badge: str | None = None,
    ) -> None:
        self.url = url
        self.level = tuple(level)
        self.only = tuple(only)
        self.seed = seed
        self.sharing = sharing
        self.effort = effort
        self.jobs = jobs
        self.deadline_s = deadline_s
        self.quiet = quiet
        self.json = json
        self.certificate = certificate
        self.badge = badge


def list_clauses(only: Sequence[str] = ()) -> str:
    """Return the catalogue as text. Raises `ConfigError` for an unknown name."""
    return listing(chosen(only or None))


def run_certification(order: CertifyOptions, *, write: Callable[[str], None]) -> bool:
    """Certify, write the files that were asked for, and return whether all that ran passed.

    Progress goes to standard error, unless the order is to be quiet; the report, or the
    certificate as JSON, to ``write`` and nothing else. Without ``only``, passed means
    conformant. Raises `ConfigError` and `PluginError` for what is wrong in the order, and
    the store's own error when it cannot be opened.
    """
    check_out_file("--certificate", order.certificate)
    check_out_file("--badge", order.badge)
    progress = Progress(len(chosen(order.only or None)))
    # What a store prints is not part of the report.
    told = nullcontext() if order.quiet else progress
    with cleans_up_at_sigterm(), redirect_stdout(sys.stderr), told:
        certificate = certify(
            StoreAtUrl(order.url, sharing=order.sharing),
            level=order.level or None,
            only=order.only or None,
            seed=order.seed,
            effort=order.effort,
            jobs=order.jobs,
            deadline_s=order.deadline_s,
            beginning=None if order.quiet else progress.begins,
            progress=None if order.quiet else progress.ended,
        )
    if order.certificate is not None:
        Path(order.certificate).write_text(certificate.to_json() + "\n", encoding="utf-8")
    if order.badge is not None:
        Path(order.badge).write_text(certificate.badge() + "\n", encoding="utf-8")
    write(certificate.to_json() if order.json else report(certificate))
    return certificate.ok if order.only else certificate.conformant
