"""How a check ends when it does not pass: the timeline, what was expected, what came.

A check raises one of three things. `CheckFailure`: the store broke the clause. `NotVerified`:
the clause could not be tried here, and why. `TooSlow`: the machine was slower than a short
time to live, so nothing can be said; the runner tries again with a longer one. Anything else
is an error of the check. None of them is an assertion: the kit runs under ``python -O``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CheckFailure", "Event", "NotVerified", "Timeline", "TooSlow", "shown"]

_LONGEST = 160


def shown(value: object) -> str:
    """Return ``repr(value)``, shortened in the middle of nowhere but never silently."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:120]}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Event:
    """One call by one of the holders, and its answer."""

    who: str
    call: str
    answer: str

    def __str__(self) -> str:
        return f"{self.who:<12} {self.call}  ->  {self.answer}"


@dataclass(slots=True)
class Timeline:
    """Who did what, in the order of the answers; long ones keep their beginning and end."""

    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    _most: int = 400

    def add(self, who: str, call: str, answer: str) -> None:
        """Add one answered call."""
        self.events.append(Event(who, call, answer))
        if len(self.events) > self._most:
            del self.events[self._most // 2]
            self.dropped += 1

    def lines(self, most: int = 60) -> list[str]:
        """Return the events as numbered lines, at most ``most`` of them."""
        total = len(self.events) + self.dropped
        numbered = [(n, event) for n, event in enumerate(self.events, 1)]
        if self.dropped:
            half = self._most // 2
            numbered = [(n if n <= half else n + self.dropped, event) for n, event in numbered]
        if len(numbered) > most:
            head, tail = numbered[: most // 3], numbered[-(most - most // 3) :]
            between = tail[0][0] - head[-1][0] - 1
            return [
                *(f"{n:>5}  {event}" for n, event in head),
                f"       ... {between} of {total} calls left out ...",
                *(f"{n:>5}  {event}" for n, event in tail),
            ]
        return [f"{n:>5}  {event}" for n, event in numbered]


class CheckFailure(Exception):  # noqa: N818 - it is no error of the check
    """The store broke the clause.

    ``expected`` and ``got`` say how, ``timeline`` who did what before, ``before`` and
    ``after`` what could be read around the call, where the check looked.
    """

    def __init__(
        self,
        expected: str,
        got: str,
        *,
        timeline: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        note: str = "",
    ) -> None:
        super().__init__(f"expected {expected}; got {got}")
        self.expected = expected
        self.got = got
        self.timeline = timeline
        self.before = before
        self.after = after
        self.note = note

    def text(self) -> str:
        """Return the whole story, for people."""
        parts = ["timeline:", *(self.timeline or ("       (no call was made)",))]
        parts += [f"expected: {self.expected}", f"got:      {self.got}"]
        for title, state in (("before:", self.before), ("after:", self.after)):
            if state:
                parts += [title, *(f"    {line}" for line in state)]
        if self.note:
            parts.append(f"note:     {self.note}")
        return "\n".join(parts)


class NotVerified(Exception):  # noqa: N818 - it is no error either
    """The clause could not be tried on this subject; the message is the reason."""


class TooSlow(Exception):  # noqa: N818 - nor this
    """A short lease ran out while the check was still working: nothing can be said."""
