"""How often a failing step is tried before it fails for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.engine.kernel.durations import seconds_of
from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rulvar.core.engine.kernel.durations import Duration

__all__ = ["NO_RETRY", "RetryPolicy"]

_MOST_DOUBLINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Tries within one dispatch; each wait is twice the one before, plus jitter.

    ``attempts`` counts the first try too; ``on`` says which exceptions are worth another
    try (classes, or a function of the exception); waits are in seconds or a `timedelta`.
    An exception group is worth one when it is named itself, or when all that it holds is.
    What is no `Exception`, as `SystemExit`, is tried again only where its class is named. Raises
    `ConfigError` for fewer than one attempt or a negative wait.
    """

    attempts: int = 3
    wait_initial: Duration = 0.1
    wait_max: Duration = 5
    wait_jitter: Duration = 1
    on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool] = (
        Exception
    )

    def __post_init__(self) -> None:
        if self.attempts < 1:
            message = f"attempts must be at least 1, not {self.attempts}"
            raise ConfigError(message)
        for name in ("wait_initial", "wait_max", "wait_jitter"):
            seconds_of(name, getattr(self, name))

    def covers(self, error: BaseException) -> bool:
        """Whether an exception is worth another try. Raises what a function ``on`` raises."""
        return self._names(error) or (
            isinstance(error, BaseExceptionGroup) and all(map(self.covers, error.exceptions))
        )

    def wait_seconds(self, *, after: int, drawn: float) -> float:
        """Return how long to wait after a failed attempt, counted from 1, in seconds.

        ``drawn`` is a random number from 0 to 1: how much of the jitter is added.
        """
        grown = seconds_of("wait_initial", self.wait_initial) * 2.0 ** min(
            after - 1, _MOST_DOUBLINGS
        )
        jitter = drawn * seconds_of("wait_jitter", self.wait_jitter)
        return min(grown + jitter, seconds_of("wait_max", self.wait_max))

    def _names(self, error: BaseException) -> bool:
        on = self.on
        if isinstance(on, type | tuple):
            return isinstance(error, on)
        return isinstance(error, Exception) and bool(on(error))


NO_RETRY = RetryPolicy(attempts=1)
