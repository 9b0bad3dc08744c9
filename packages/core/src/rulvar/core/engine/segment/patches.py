"""``ctx.patched``: where a body was changed on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rulvar.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

    from rulvar.core.engine.segment.scope import Scope

__all__ = ["Patched"]


class Patched:
    """What `Context.patched` returns: to be awaited, once, where it is made."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name
        scope.unawaited.append(self)

    def __await__(self) -> Generator[object, None, bool]:
        """Return whether this run takes the new way."""
        return self._ask().__await__()

    def __bool__(self) -> NoReturn:
        """Refuse: it would always be true."""
        raise self.forgotten()

    def forgotten(self) -> ConfigError:
        """Return what is raised when it was not awaited."""
        message = (
            f"ctx.patched({self._name!r}) was not awaited: write await ctx.patched({self._name!r})"
        )
        return ConfigError(message)

    async def _ask(self) -> bool:
        scope, segment = self._scope, self._scope.segment
        if self in scope.unawaited:
            scope.unawaited.remove(self)
        await scope.wait_if_draining()
        with scope.alone(self._name):
            await segment.frames.flush()
            known = segment.replay.patched(scope.path, self._name)
            if known is not None:
                return known
            await scope.open("patched", self._name, status="ok", value=True)
            return True
