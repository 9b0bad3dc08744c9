"""Everything at once, against the reference store (family X)."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from rulvar.conformance.contract.clauses import Section
from rulvar.conformance.contract.levels import Level
from rulvar.conformance.harness.failure import NotVerified

if TYPE_CHECKING:
    from rulvar.conformance.harness.check_context import CheckContext

__all__ = ["CLAUSES"]

CLAUSES = Section(level=Level.JOURNAL, source="The reference store")

_EXAMPLES = 80
_STEPS = 25


@CLAUSES.clause(
    "X-model",
    "After any operations in any order the store answers and holds what the reference store does.",
    strength="SHOULD",
    moves_clock=True,
)
def _model(check: CheckContext) -> None:
    try:
        from rulvar.conformance.model.machine import run_model  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = (
            f"Hypothesis is not installed ({error}): pip install rulvar-conformance[hypothesis]"
        )
        raise NotVerified(message) from error
    # What Hypothesis prints of a failure is in the story already.
    with contextlib.redirect_stdout(io.StringIO()):
        run_model(
            check,
            chance=check.random.getrandbits(32),
            examples=_EXAMPLES * check.effort,
            steps=_STEPS,
        )
