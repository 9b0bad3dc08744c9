"""A workflow: an async body under a name and a version, with the source it was written in.

The name and the version are its identity: whoever has them may continue its runs, whatever
code began those. `code_of` tells codes of one identity apart, for runs that one of them
cannot replay.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar, overload

from rulvar.core.checks import MAX_INTEGER, check_integer, check_version, check_workflow_name
from rulvar.core.engine.code.builds import build_of
from rulvar.core.errors import ConfigError

__all__ = [
    "NOT_GIVEN",
    "Body",
    "Given",
    "NotGiven",
    "Workflow",
    "check_limit_of_run",
    "check_max_recoveries",
    "check_workflow",
    "code_of",
    "workflow",
]

_FIRST_VERSION = "1"
_MAX_RECOVERIES = 10


class NotGiven:
    """Tells arguments that were left out from None."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN = NotGiven()

T = TypeVar("T")
Given: TypeAlias = T | NotGiven
"""An argument that may be left out, also where None means something."""

Body = Callable[..., Awaitable[object]]
"""``async def body(ctx)`` or ``async def body(ctx, args)``; args is one JSON value."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A body that an engine can run, and resume in another process under the same name.

    ``version`` is what its new runs are of; ``accepts`` are older versions whose runs it goes
    on with, too. ``hash`` pins the body's source text; ``takes_args`` says whether the body
    has a second parameter. ``max_recoveries`` is how often in a row a run may end its process
    without getting anything done, None without end.
    """

    name: str
    body: Body
    source: str = field(repr=False)
    hash: str = field(repr=False)
    takes_args: bool = field(repr=False)
    needs_args: bool = field(repr=False)
    version: str = _FIRST_VERSION
    accepts: tuple[str, ...] = ()
    max_recoveries: int | None = _MAX_RECOVERIES

    @classmethod
    def of(
        cls,
        body: Body,
        *,
        name: str | None = None,
        version: str = _FIRST_VERSION,
        accepts: tuple[str, ...] = (),
        max_recoveries: int | None = _MAX_RECOVERIES,
    ) -> Workflow:
        """Make a workflow of an async function.

        ``name`` defaults to the function's. Raises `ConfigError` when the body is no async
        function of a context and at most one more argument, and for a bad name, version or
        ``max_recoveries``.
        """
        shown = getattr(body, "__qualname__", repr(body))
        if not inspect.iscoroutinefunction(body):
            message = f"the body {shown} must be an async function: write 'async def'"
            raise ConfigError(message)
        declared = inspect.signature(body).parameters.values()
        for parameter in declared:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                message = (
                    f"the body {shown} needs the keyword {parameter.name!r}, which no run can "
                    f"give: write (ctx, {parameter.name}), or take several in one JSON object"
                )
                raise ConfigError(message)
        parameters = [
            parameter
            for parameter in declared
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        required = [p for p in parameters if p.default is inspect.Parameter.empty]
        if not len(parameters) >= 1 or len(required) > len(("ctx", "args")):
            message = f"the body {shown} must take (ctx) or (ctx, args): one JSON value"
            raise ConfigError(message)
        source = _source(body)
        return cls(
            name=check_workflow_name(body.__name__ if name is None else name),
            body=body,
            source=source,
            hash="sha256:" + hashlib.sha256(source.encode("utf-8")).hexdigest(),
            takes_args=len(parameters) > 1,
            needs_args=len(required) > 1,
            version=check_version(version),
            accepts=_check_accepts(accepts),
            max_recoveries=check_max_recoveries(max_recoveries),
        )

    def takes(self, version: str | None) -> bool:
        """Whether it continues runs of a version; None is one that does not say."""
        return version is None or version == self.version or version in self.accepts

    def check_args(self, *, provided: bool) -> None:
        """Refuse arguments that the body does not take, or their absence where it needs them.

        Raises `ConfigError`.
        """
        if provided and not self.takes_args:
            message = f"workflow {self.name!r} takes no arguments: leave args out"
            raise ConfigError(message)
        if not provided and self.needs_args:
            message = f"workflow {self.name!r} needs arguments: give args, one JSON value"
            raise ConfigError(message)

    def call(self, ctx: object, *, provided: bool, args: object) -> Awaitable[object]:
        """Start the body."""
        return self.body(ctx, args) if provided else self.body(ctx)


def check_workflow(workflow: object, /) -> Workflow:
    """Take a workflow. Raises `ConfigError` for anything else, a bare function too."""
    if not isinstance(workflow, Workflow):
        message = f"{workflow!r} is not a Workflow: decorate its function with @workflow"
        raise ConfigError(message)
    return workflow


def _source(body: Body) -> str:
    try:
        return textwrap.dedent(inspect.getsource(body))
    except (OSError, TypeError):
        # Typed in at a prompt or compiled from a string: there is no text to keep.
        return f"# the source of {body.__module__}.{body.__qualname__} is not available\n"


def _check_accepts(accepts: object) -> tuple[str, ...]:
    if not isinstance(accepts, tuple):
        message = f'accepts must be a tuple of versions, as ("1",), not {accepts!r}'
        raise ConfigError(message)
    return tuple(map(check_version, accepts))


def check_max_recoveries(value: object, /) -> int | None:
    """Take how often in a row a run may die: 0 and more, or None. Raises `ConfigError`."""
    return None if value is None else check_integer("max_recoveries", value, 0, MAX_INTEGER)


def check_limit_of_run(value: Given[int | None], /) -> Given[int | None]:
    """Take what a start says of its own run; left out, it is its workflow's.

    Raises `ConfigError`.
    """
    return value if isinstance(value, NotGiven) else check_max_recoveries(value)


def code_of(workflow: Workflow, build: str | None = None, /) -> str:
    """Return what tells the code of a workflow from another code of the same identity.

    A digest of its version, its body's hash and ``build``, which is what the application
    says, or by default a hash of the sources of the package that defines the body.
    """
    facts = (workflow.version, workflow.hash, build_of(workflow.body) if build is None else build)
    text = "".join(f"{len(fact)}:{fact}" for fact in facts)
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


@overload
def workflow(body: Body, /) -> Workflow: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = ...,
    accepts: tuple[str, ...] = ...,
    max_recoveries: int | None = ...,
) -> Callable[[Body], Workflow]: ...
def workflow(
    body: Body | None = None,
    /,
    *,
    name: str | None = None,
    version: str = _FIRST_VERSION,
    accepts: tuple[str, ...] = (),
    max_recoveries: int | None = _MAX_RECOVERIES,
) -> Workflow | Callable[[Body], Workflow]:
    """Make a workflow of an async function: ``@workflow`` or ``@workflow(name="...")``.

    ``name`` is its identity wherever it runs: qualify it, as in ``"billing.process"``; by
    default it is the function's own. New runs are of ``version``, and runs of the versions
    that it ``accepts`` are gone on with. ``max_recoveries`` is how often in a row a run may
    end its process, without getting anything done, before it settles ``exhausted``; None
    without end.

    Raises `ConfigError` as `Workflow.of` does.
    """
    make = partial(
        Workflow.of, name=name, version=version, accepts=accepts, max_recoveries=max_recoveries
    )
    return make if body is None else make(body)
