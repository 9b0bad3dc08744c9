"""A short hash of a call's arguments, by which a replay notices a reordering."""

from __future__ import annotations

from typing import Final

from rulvar.core.values import content_hash

__all__ = ["NO_ARGS", "args_hash"]


class _NoArgs:
    """Says that a call has no arguments that would tell it from another of its name."""


NO_ARGS: Final = _NoArgs()
_PREFIX = len("sha256:")
_DIGITS = 16


def args_hash(args: object) -> str | None:
    """Return the hash of arguments as I-JSON; None where they do not encode, or there are none."""
    if args is NO_ARGS or args in ((), []):
        return None
    try:
        return content_hash(args)[_PREFIX : _PREFIX + _DIGITS]
    except Exception:  # noqa: BLE001 - code of the user's may run: then there is nothing to compare
        return None
