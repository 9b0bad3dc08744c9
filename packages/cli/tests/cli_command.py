"""The command in this process, as a test types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from click.testing import CliRunner

from rulvar.cli.main import main

if TYPE_CHECKING:
    from click.testing import Result


def rulvar(*args: str, status: int = 0, stdin: str | None = None) -> Result:
    """Run the command, which must end with this status."""
    result = CliRunner().invoke(main, args, input=stdin)
    assert result.exit_code == status, result.output
    return result


def document(*args: str, status: int = 0, stdin: str | None = None) -> dict[str, object]:
    """Run the command with ``--json``; return what it said."""
    said = rulvar(*args, "--json", status=status, stdin=stdin).stdout
    return cast("dict[str, object]", json.loads(said))
