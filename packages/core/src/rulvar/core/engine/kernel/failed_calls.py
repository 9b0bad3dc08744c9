"""Which calls of a run an exception stands for: what a retry makes again."""

from __future__ import annotations

__all__ = ["calls_of", "mark"]

_NAME = "_rulvar_call"
_MOST = 100


def mark(error: BaseException, seq: int | None) -> BaseException:
    """Note on an exception that it is how the call with this opening failed; return it."""
    if seq is not None:
        error.__dict__[_NAME] = seq
    return error


def calls_of(error: BaseException | None) -> list[int]:
    """Return the seqs of the failed calls behind an exception, the nearest first.

    They are found on the exception, its cause and context, and the members of groups.
    """
    found: list[int] = []
    seen: set[int] = set()
    queue = [error]
    while queue and len(seen) < _MOST:
        each = queue.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        seq = getattr(each, "__dict__", {}).get(_NAME)
        if isinstance(seq, int):
            if seq not in found:
                found.append(seq)
            continue
        queue += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            queue += each.exceptions
    return found
