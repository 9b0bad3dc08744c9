"""Every clause, in the order in which a store author wants to read them fail."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rulvar.conformance.contract.checks import (
    atomicity,
    blobs,
    declarations,
    deletion,
    endings,
    everything,
    fence,
    forks,
    ids,
    interrupts,
    journal,
    leases,
    operators,
    processes,
    rows,
)
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulvar.conformance.contract.clauses import Clause

__all__ = ["catalogue", "chosen"]

HANDLES_ANSWERS = False
"""What goes wrong in this module is the kit's fault, and never an answer of a store."""

_SECTIONS = (
    declarations.CLAUSES,
    journal.CLAUSES,
    rows.CLAUSES,
    deletion.CLAUSES,
    blobs.CLAUSES,
    ids.CLAUSES,
    endings.CLAUSES,
    interrupts.CLAUSES,
    leases.CLAUSES,
    operators.CLAUSES,
    fence.CLAUSES,
    processes.CLAUSES,
    forks.CLAUSES,
    atomicity.CLAUSES,
    everything.CLAUSES,
)


def catalogue() -> tuple[Clause, ...]:
    """Return every clause. Ids are unique."""
    found = [clause for section in _SECTIONS for clause in section]
    ids = {clause.id for clause in found}
    if len(ids) != len(found):
        message = "two clauses have one id"
        raise RuntimeError(message)
    return tuple(found)


def chosen(only: Iterable[str] | None) -> tuple[Clause, ...]:
    """Return the clauses that ``only`` names: ids, or patterns such as ``A5*`` and ``F-*-atomic``.

    Raises `ConfigError` for a name that fits none.
    """
    everything = catalogue()
    if only is None:
        return everything
    wanted: dict[str, Clause] = {}
    for name in only:
        fits = [clause for clause in everything if fnmatchcase(clause.id, name)]
        if not fits:
            near = difflib.get_close_matches(name, [clause.id for clause in everything], n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            message = f"no clause is called {name!r}{hint}: --list shows them all"
            raise ConfigError(message)
        wanted.update((clause.id, clause) for clause in fits)
    return tuple(clause for clause in everything if clause.id in wanted)
