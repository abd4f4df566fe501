"""Avro schemas: where the documents' field is, and a schema that decodes the same bytes plainly."""

from collections.abc import Iterator
from typing import Any

import fastavro

_INTEGERS = ("int", "long")


class Schema:
    """The schema of a file's records, with its named types resolved."""

    def __init__(self, schema: Any) -> None:
        """Parse a schema as JSON gives it.

        Raises:
            ValueError: it is not valid, or not that of records.
        """
        self._named: dict[str, Any] = {}
        try:
            self._root = fastavro.parse_schema(plain_schema(schema), named_schemas=self._named)
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise ValueError(f"its schema is not valid: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its schema is not valid: {error!r}") from error
        if not any(_kind(branch) == "record" for branch in self._branches(self._root)):
            raise ValueError("its schema is not that of records")

    def check(self, field: str, key: str) -> None:
        """Make sure that a field holds what a key of the recipe asks for.

        Raises:
            KeyError: there is no such field.
            TypeError: it holds something else; the message names what.
        """
        found = self._find(field)
        branches = [branch for branch in found if _kind(branch) != "null"]
        if not any(self._is(branch, key) for branch in branches):
            raise TypeError(" or ".join(self._describe(branch) for branch in found))

    def names(self) -> list[str]:
        """Return the fields, those of nested records by dotted path."""
        return list(self._names(self._root, "", ()))

    def _find(self, field: str) -> list[Any]:
        """Return the types that a field may have; of maps, those of their values."""
        for path in ((field,), tuple(field.split("."))):
            found = self._branches(self._root)
            for name in path:
                found = [inner for outer in found for inner in self._inner(outer, name)]
            if found:
                return found
        raise KeyError(field)

    def _inner(self, outer: Any, name: str) -> list[Any]:
        if _kind(outer) == "map":
            return self._branches(outer["values"])
        fields = outer["fields"] if _kind(outer) == "record" else []
        return [
            b for entry in fields if entry["name"] == name for b in self._branches(entry["type"])
        ]

    def _branches(self, schema: Any) -> list[Any]:
        """Return the types of a union, or the one type, with names looked up."""
        if isinstance(schema, list):
            return [branch for entry in schema for branch in self._branches(entry)]
        if isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
            return self._branches(schema["type"])
        return [self._named.get(schema, schema) if isinstance(schema, str) else schema]

    def _is(self, branch: Any, key: str) -> bool:
        if key == "text":
            return _kind(branch) == "bytes"
        if _kind(branch) != "array":
            return False
        items = {_kind(item) for item in self._branches(branch["items"])}
        if key in ("messages", "content"):
            return bool(items & {"record", "map"})
        wanted = _INTEGERS if key == "tokens" else (*_INTEGERS, "boolean")
        return bool(items & set(wanted))

    def _describe(self, branch: Any) -> str:
        if _kind(branch) == "array":
            items = " or ".join(self._describe(item) for item in self._branches(branch["items"]))
            return f"an array of {items}"
        return {"bytes": "string", "record": "a record"}.get(_kind(branch), _kind(branch))

    def _names(self, schema: Any, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
        """Yield names of fields; a record inside of itself is not followed again."""
        for outer in self._branches(schema):
            if _kind(outer) != "record" or outer["name"] in above:
                continue
            for entry in outer["fields"]:
                name = prefix + entry["name"]
                inner = list(self._names(entry["type"], f"{name}.", (*above, outer["name"])))
                yield from inner or [name]


def plain_schema(schema: Any) -> Any:
    """Return a schema of the same encoding: strings are bytes, and logical types are left out."""
    if isinstance(schema, str):
        return "bytes" if schema == "string" else schema
    if isinstance(schema, list):
        return [plain_schema(branch) for branch in schema]
    kind = schema["type"]
    if not isinstance(kind, str):
        return plain_schema(kind)
    plain = {key: schema[key] for key in ("name", "namespace", "symbols", "size") if key in schema}
    if kind in ("record", "error"):
        fields = [{"name": f["name"], "type": plain_schema(f["type"])} for f in schema["fields"]]
        return {"type": "record", **plain, "fields": fields}
    if kind == "array":
        return {"type": "array", "items": plain_schema(schema["items"])}
    if kind == "map":
        return {"type": "map", "values": plain_schema(schema["values"])}
    return {"type": kind, **plain} if plain else plain_schema(kind)


def _kind(schema: Any) -> str:
    kind: str = schema["type"] if isinstance(schema, dict) else schema
    return kind
