"""``python -m rulvar.conformance URL``: certify a registered store, with nothing else installed."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from rulvar.conformance.certification.options import (
    DEADLINE_S,
    JOBS,
    CertifyOptions,
    list_clauses,
    run_certification,
)
from rulvar.conformance.contract.levels import Level, Sharing
from rulvar.core.errors import RulvarError

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["main"]

_EXAMPLES = """\
examples:
  python -m rulvar.conformance acme:///runs.db
  python -m rulvar.conformance acme:///runs.db --only 'A5*' --seed 7
  python -m rulvar.conformance acme:///runs.db --certificate acme.json --badge badge.json
  python -m rulvar.conformance --list
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rulvar.conformance",
        description="Certify the store at a URL; 0: conformant, 1: not, 2: it could not begin.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="as in acme:///runs.db; @tmp@ is a new folder")
    parser.add_argument("--list", action="store_true", help="show the clauses and leave")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="a clause, or a pattern: 'A5*'; repeatable",
    )
    parser.add_argument(
        "--level", action="append", default=[], choices=list(Level), help="what is claimed"
    )
    parser.add_argument("--sharing", choices=list(Sharing), help="how far the state reaches")
    parser.add_argument("--seed", type=int, help="make the random choices again")
    parser.add_argument("--effort", type=int, default=1, help="more races and histories: 1, 2, ...")
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help="clauses at once, where that proves as much: 1, ..."
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="how long one clause may take, times the effort",
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on standard error")
    parser.add_argument("--json", action="store_true", help="print the certificate as JSON")
    parser.add_argument("--certificate", metavar="FILE", help="write the certificate there too")
    parser.add_argument("--badge", metavar="FILE", help="write a badge file")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.list:
            _print(list_clauses(given.only), stream=sys.stdout)
            return 0
        if given.url is None:
            parser.error("a store's URL is missing, as in acme:///runs.db")
        order = CertifyOptions(
            given.url,
            level=given.level,
            only=given.only,
            seed=given.seed,
            sharing=given.sharing,
            effort=given.effort,
            jobs=given.jobs,
            deadline_s=given.deadline,
            quiet=given.quiet,
            json=given.json,
            certificate=given.certificate,
            badge=given.badge,
        )
        # Bound now: a clause that never ends may keep standard output turned elsewhere.
        return 0 if run_certification(order, write=partial(_print, stream=sys.stdout)) else 1
    except RulvarError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _print(text: str, *, stream: TextIO) -> None:
    encoding = stream.encoding or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


if __name__ == "__main__":
    sys.exit(main())
