"""What a resolution must look like: JSON Schema 2020-12, journalled with the suspension.

The library is an extra, needed where a schema is given: by the body that asks, and by
whoever resolves. Nothing is fetched: a reference must lead to a place inside the schema, or
to the specification's own. ``format`` is an annotation, as the specification has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast

from rulvar.core.errors import ConfigError, InvalidResolutionError
from rulvar.core.values import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import Schema

    from rulvar.core.journal import JournalEntry

__all__ = ["check_default", "check_resolution", "check_schema", "not_awaited"]

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


def not_awaited(run_id: str, key: str, waiting: Iterable[JournalEntry]) -> InvalidResolutionError:
    """Return the error for a key that a run does not wait for; it names those that it does."""
    keys = list(dict.fromkeys(each.key for each in waiting if each.kind == "external"))
    near = get_close_matches(key, keys, n=1)
    shown = ", ".join(map(repr, keys[:_MOST_KEYS]))
    if len(keys) > _MOST_KEYS:
        shown += f" and {len(keys) - _MOST_KEYS} more"
    message = (
        f"run {run_id!r} does not wait for {key!r}, but for "
        f"{shown or 'nothing that could be resolved'}"
    )
    if near and len(keys) > 1:
        message += f": did you mean {near[0]!r}?"
    return InvalidResolutionError(message, run_id=run_id, key=key)


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
