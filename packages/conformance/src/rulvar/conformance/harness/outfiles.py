"""Files that a report is to be written to, looked at before an hour's work and not after it."""

from __future__ import annotations

import os
from pathlib import Path

from rulvar.core.errors import ConfigError

__all__ = ["check_out_file"]


def check_out_file(option: str, path: str | None) -> None:
    """Raise `ConfigError` when ``path``, given by ``option``, can be no new or replaced file."""
    if path is None:
        return
    file = Path(path)
    if file.is_dir():
        message = f"{option} {path} is a folder: name a file in it"
    elif not file.parent.is_dir():
        message = f"the folder of {option} {path} does not exist: create it first"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        message = f"{option} {path} may not be written: name another place, or allow it"
    else:
        return
    raise ConfigError(message)
