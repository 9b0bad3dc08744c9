"""What a resolution must look like: JSON Schema 2020-12, journalled with the suspension.

The library is an extra, needed where a schema is given: by the body that asks, and by
whoever resolves. Nothing is fetched: a reference must lead to a place inside the schema, or
to the specification's own. ``format`` is an annotation, as the specification has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast

from rulvar.core.errors import (
    AlreadyAnsweredError,
    ConfigError,
    InvalidResolutionError,
    NotAskedError,
)
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import Schema

    from rulvar.core.journal import JournalEntry

__all__ = [
    "answered_already",
    "check_default",
    "check_resolution",
    "check_schema",
    "choose_wait",
]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LONGEST_REASON = 500
_MOST_KEYS = 5


def check_schema(schema: object) -> object:
    """Return a schema as the journal will have it.

    Raises `ConfigError` for what is no JSON Schema 2020-12, and when ``jsonschema`` is not
    installed.
    """
    value = normalize(schema, path="$.schema")
    if not isinstance(value, dict | bool):
        message = f"a JSON Schema is an object or a boolean, not {value!r}"
        raise ConfigError(message, path="$.schema")
    if isinstance(value, dict) and str(value.get("$schema", _DIALECT)).rstrip("#") != _DIALECT:
        message = f"$.schema: {value['$schema']!r} is not the dialect used here: {_DIALECT}"
        raise ConfigError(message, path="$.schema")
    validator = _validator(value)
    from jsonschema import SchemaError  # noqa: PLC0415 - an extra

    try:
        # It asserts the formats of the schema itself: a pattern that is none is found here.
        type(validator).check_schema(value)
    except SchemaError as error:
        path = "$.schema" + error.json_path.removeprefix("$")
        message = f"{path}: no JSON Schema: {_short(error.message)}"
        raise ConfigError(message, path=path) from error
    _check_references(value)
    return value


def check_resolution(opening: JournalEntry, value: object, *, run_id: str) -> None:
    """Refuse a value that does not fit the schema of the suspension it would answer.

    Raises `InvalidResolutionError` naming the path inside the value, `ConfigError` when
    there is a schema and ``jsonschema`` is not installed.
    """
    facts = opening.value
    if not isinstance(facts, dict) or "schema" not in facts:
        return
    key = opening.key
    found = _misfit(facts["schema"], value)
    if found is not None:
        path, reason = found
        message = (
            f"run {run_id!r}: the value for {key!r} does not fit its schema at {path}: {reason}"
        )
        raise InvalidResolutionError(message, run_id=run_id, key=key, path=path)


def choose_wait(
    run_id: str,
    key: str,
    seq: int | None,
    waiting: Iterable[JournalEntry],
    *,
    is_answered: Callable[[], bool],
) -> JournalEntry:
    """Return the opening that an answer is for: the earliest open one of ``key``, or ``seq``'s.

    ``is_answered`` says whether it was asked for before. Raises `AlreadyAnsweredError` then,
    and `NotAskedError` otherwise, naming what the run does wait for.
    """
    openings = [each for each in waiting if each.kind == "external"]
    for opening in openings:
        if opening.key == key and seq in {None, opening.seq}:
            return opening
    if is_answered():
        raise answered_already(run_id, key, seq)
    raise _not_asked(run_id, key, seq, openings)


def answered_already(run_id: str, key: str, seq: int | None = None) -> AlreadyAnsweredError:
    """Return the error for an answer that came after the first."""
    message = f"run {run_id!r}: {_shown(key, seq)} is resolved already; the first answer counts"
    return AlreadyAnsweredError(message, run_id=run_id, key=key)


def _shown(key: str, seq: int | None) -> str:
    return repr(key) if seq is None else f"{key!r} (seq {seq})"


def _not_asked(
    run_id: str, key: str, seq: int | None, openings: list[JournalEntry]
) -> NotAskedError:
    """Return the error for a key that a run does not wait for; it names those that it does."""
    keys = list(dict.fromkeys(each.key for each in openings))
    named = keys if seq is None else [_shown(each.key, each.seq) for each in openings]
    shown = ", ".join([repr(each) if seq is None else each for each in named[:_MOST_KEYS]])
    if len(named) > _MOST_KEYS:
        shown += f" and {len(named) - _MOST_KEYS} more"
    message = (
        f"run {run_id!r} does not wait for {_shown(key, seq)}, but for "
        f"{shown or 'nothing that could be resolved'}"
    )
    near = get_close_matches(key, keys, n=1)
    if near and len(keys) > 1 and near[0] != key:
        message += f": did you mean {near[0]!r}?"
    return NotAskedError(message, run_id=run_id, key=key)


def check_default(schema: object, default: object) -> None:
    """Refuse a default that no resolution could have given. Raises `ConfigError`."""
    found = _misfit(schema, default)
    if found is not None:
        path = "$.default" + found[0].removeprefix("$")
        message = f"{path}: the default does not fit the schema: {found[1]}"
        raise ConfigError(message, path=path)


def _misfit(schema: object, value: object) -> tuple[str, str] | None:
    """Return the place and the reason of what fits least, if anything does not fit."""
    validator = _validator(schema)
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - an extra

    try:
        error = best_match(validator.iter_errors(value))
    except RecursionError:
        return "$", "it is nested too deep"
    return None if error is None else (error.json_path, _short(error.message))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def _validator(schema: object) -> Draft202012Validator:
    try:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        message = (
            "a schema needs the jsonschema library: pip install 'rulvar-core[schema]' here, "
            "and wherever runs are resolved"
        )
        raise ConfigError(message) from error
    return Draft202012Validator(cast("Schema", schema), registry=_registry(_resource(schema)))


def _resource(schema: object) -> Resource[Schema]:
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - comes with jsonschema

    return DRAFT202012.create_resource(cast("Schema", schema))


def _registry(resource: Resource[Schema]) -> Registry[Schema]:
    """Return where references may lead: the specification, and the schema itself."""
    import jsonschema_specifications  # type: ignore[import-untyped] # noqa: PLC0415

    known = cast("Registry[Schema]", jsonschema_specifications.REGISTRY)
    registry: Registry[Schema] = known.with_resource(resource.id() or "", resource).crawl()
    return registry


def _check_references(schema: object) -> None:
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - comes with jsonschema

    whole = _resource(schema)
    left = [(_registry(whole).resolver(whole.id() or ""), whole)]
    while left:
        resolver, resource = left.pop()
        contents = resource.contents
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(contents, Mapping) and keyword in contents:
                try:
                    resolver.lookup(contents[keyword])
                except Unresolvable as error:
                    message = (
                        f"$.schema: the reference {contents[keyword]!r} leads nowhere inside "
                        "the schema, and nothing is fetched: put what it means under $defs"
                    )
                    raise ConfigError(message, path="$.schema") from error
        left += [(resolver.in_subresource(inner), inner) for inner in resource.subresources()]
