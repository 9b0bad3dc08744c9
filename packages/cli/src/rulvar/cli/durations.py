"""Ages on the command line: ``30d``, ``12h``, ``90m``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from rulvar.core.checks import MAX_INTEGER

if TYPE_CHECKING:
    from rulvar.core import RetentionPolicy

__all__ = ["read_age", "read_policy"]

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_FORM = re.compile(r"([0-9]{1,15})([smhdw])", re.ASCII)


def read_age(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the milliseconds of an option's age, or end with a usage error."""
    if value is None:
        return None
    found = _FORM.fullmatch(value)
    age_ms = int(found[1]) * _UNITS_MS[found[2]] if found is not None else None
    if age_ms is None or age_ms > MAX_INTEGER:
        message = (
            f"{value!r} is not a valid age: give a whole number and s, m, h, d or w, as in 30d"
        )
        raise click.BadParameter(message, context, parameter)
    return age_ms


def read_policy(older_than_ms: int, statuses: str, keep_last: int) -> RetentionPolicy:
    """Return the policy that the options spell. Raises `ConfigError` for odd statuses."""
    from rulvar.core import RetentionPolicy  # noqa: PLC0415 - brings the engine

    names = tuple(name.strip() for name in statuses.split(","))
    return RetentionPolicy(older_than=older_than_ms / 1000, statuses=names, keep_last=keep_last)
