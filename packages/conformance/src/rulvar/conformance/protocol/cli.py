"""``python -m rulvar.conformance.protocol``: explore, take away, replay, and say so."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rulvar.conformance.contract.levels import Sharing
from rulvar.conformance.harness.store_under_test import StoreAtUrl, StoreFromFactory
from rulvar.conformance.harness.terminated import cleans_up_at_sigterm
from rulvar.conformance.protocol.guards import GUARDS, named
from rulvar.conformance.protocol.report import as_json, interleavings, page
from rulvar.conformance.protocol.run_all import Found, Plan, look_for, run_all
from rulvar.conformance.protocol.state import OWNERS
from rulvar.core.errors import ConfigError, RulvarError
from rulvar.core.testing import reference_stores

if TYPE_CHECKING:
    from rulvar.conformance.harness.store_under_test import Home, StoreUnderTest
    from rulvar.core.stores import Stores

__all__ = ["main", "reference_subject"]

_EXAMPLES = """\
examples:
  python -m rulvar.conformance.protocol
  python -m rulvar.conformance.protocol acme:///runs.db
  python -m rulvar.conformance.protocol --guard append:unit
  python -m rulvar.conformance.protocol --owners 3 --epochs 3 --wide acme:///runs.db
"""


def _open_reference(home: Home) -> Stores:
    return reference_stores(clock=home.clock, lease_ttl_ms=home.lease_ttl_ms)


def reference_subject() -> StoreFromFactory:
    """Return the reference store as something to be held against the model."""
    return StoreFromFactory(
        "the reference store", _open_reference, sharing=Sharing.OBJECT, takes_clock=True
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rulvar.conformance.protocol",
        description=(
            "Explore the protocol of the fence without a gap, take every guard away in turn, and "
            "replay the interleavings on the reference store and on the store at each URL. "
            "0: all of it holds; 1: not; 2: it could not begin."
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="a store, as in acme:///runs.db")
    parser.add_argument("--owners", type=int, default=2, help="1 to 4; 2 by default")
    parser.add_argument("--epochs", type=int, default=2, help="grants of the run; 2 by default")
    parser.add_argument("--things", type=int, default=1, help="things stored at once; 1 by default")
    parser.add_argument("--flights", type=int, default=1, help="calls in flight; 1 by default")
    parser.add_argument(
        "--guard",
        action="append",
        default=[],
        metavar="ID",
        help="only show what is found without this guard, as in append:unit; repeatable",
    )
    parser.add_argument("--wide", action="store_true", help="replay more of it")
    parser.add_argument("--no-replay", action="store_true", help="leave the stores alone")
    parser.add_argument("--verbose", action="store_true", help="print every interleaving")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    least = {"owners": 1, "epochs": 1, "things": 1, "flights": 0}
    for name, number in least.items():
        if getattr(given, name) < number:
            message = f"--{name} {getattr(given, name)} is too small: {number} or more"
            raise ConfigError(message)
    if given.owners > len(OWNERS):
        message = f"--owners {given.owners} is too many: at most {len(OWNERS)}"
        raise ConfigError(message)
    return Plan.of(
        owners=given.owners,
        epochs=given.epochs,
        things=given.things,
        flights=given.flights,
        wide=given.wide,
    )


def _show_guards(given: argparse.Namespace) -> bool:
    """Print what is found without some guards; return whether it shows that they are gone."""
    found: list[Found] = []
    for name in given.guard:
        guards = named(name)
        if not guards:
            calls = ", ".join(sorted({guard.call for guard in GUARDS}))
            message = (
                f"unknown guard {name!r}: give one as the report names it (append:unit), or "
                f"all of a call ({calls})"
            )
            raise ConfigError(message)
        found += [Found(guard, look_for(guard)) for guard in guards]
    _print(interleavings(found))
    return all(each.differs() for each in found)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        plan = _plan(given)
        if given.guard:
            return 0 if _show_guards(given) else 1
        subjects: list[StoreUnderTest] = [] if given.no_replay else [reference_subject()]
        subjects += [StoreAtUrl(url) for url in given.urls]
        with cleans_up_at_sigterm():
            done = run_all(plan, subjects, tell=_tell)
    except RulvarError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    if given.json:
        _print(json.dumps(as_json(done), indent=2))
    else:
        if given.verbose:
            _print(interleavings(done.found) + "\n")
        _print(page(done))
        _print(f"{done.seconds:.1f} s")
    return 0 if done.holds else 1


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
