"""How often a failing step is tried before it fails for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NO_RETRY", "RetryPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Tries within one dispatch; each wait is twice the one before, plus jitter.

    ``attempts`` counts the first try too; ``on`` says which exceptions are worth another
    try (classes, or a function of the exception); waits are in milliseconds. Raises
    `ConfigError` for fewer than one attempt or a negative wait.
    """

    attempts: int = 3
    wait_initial_ms: int = 100
    wait_max_ms: int = 5_000
    wait_jitter_ms: int = 1_000
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception

    def __post_init__(self) -> None:
        if self.attempts < 1:
            message = f"attempts must be at least 1, not {self.attempts}"
            raise ConfigError(message)
        for name in ("wait_initial_ms", "wait_max_ms", "wait_jitter_ms"):
            value = getattr(self, name)
            if value < 0:
                message = f"{name} must not be negative, it is {value}"
                raise ConfigError(message)


NO_RETRY = RetryPolicy(attempts=1)
