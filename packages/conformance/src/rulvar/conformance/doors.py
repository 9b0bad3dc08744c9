"""What the command lines share: options made into a certification, and its outcome shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rulvar.conformance.registry import chosen
from rulvar.conformance.reporting import listing, report
from rulvar.conformance.runner import certify
from rulvar.conformance.subject import UrlSubject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rulvar.conformance.certificate import Result

__all__ = ["Order", "list_clauses", "run_order", "show_progress"]


class Order:
    """What somebody asked for on a command line."""

    def __init__(
        self,
        url: str,
        *,
        level: Sequence[str] = (),
        only: Sequence[str] = (),
        seed: int | None = None,
        reach: str | None = None,
        effort: int = 1,
        json: bool = False,
        certificate: str | None = None,
        badge: str | None = None,
    ) -> None:
        self.url = url
        self.level = tuple(level)
        self.only = tuple(only)
        self.seed = seed
        self.reach = reach
        self.effort = effort
        self.json = json
        self.certificate = certificate
        self.badge = badge


def list_clauses(only: Sequence[str] = ()) -> str:
    """Return the catalogue as text. Raises `ConfigError` for an unknown name."""
    return listing(chosen(only or None))


def run_order(
    order: Order,
    *,
    write: Callable[[str], None],
    progress: Callable[[Result], None] | None = None,
) -> bool:
    """Certify, write the files that were asked for, and return whether all that ran passed.

    Without ``only``, passed means conformant. Raises `ConfigError` and `PluginError` for
    what is wrong in the order, and the store's own error when it cannot be opened.
    """
    certificate = certify(
        UrlSubject(order.url, reach=order.reach),
        level=order.level or None,
        only=order.only or None,
        seed=order.seed,
        effort=order.effort,
        progress=progress,
    )
    if order.certificate is not None:
        Path(order.certificate).write_text(certificate.to_json() + "\n", encoding="utf-8")
    if order.badge is not None:
        Path(order.badge).write_text(certificate.badge() + "\n", encoding="utf-8")
    write(certificate.to_json() if order.json else report(certificate))
    return certificate.ok if order.only else certificate.conformant


def show_progress(total: int) -> Callable[[Result], None] | None:
    """Return what shows one changing line on a terminal; None where nobody watches."""
    if not sys.stderr.isatty():
        return None
    done = 0

    def show(result: Result) -> None:
        nonlocal done
        done += 1
        text = f"\r{done}/{total}  {result.clause_id}"
        sys.stderr.write(f"{text:<60.60}" if done < total else f"\r{'':<60}\r")
        sys.stderr.flush()

    return show
