"""Rows as messages of Kafka: the key, value and headers of each, and the types that they can be made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from trident.coordinators.errors import FieldError, TopologyError, TridentError
from trident.states.core.tables import DELETED_COLUMN
from trident.states.outside.json_rows import as_python, check_json, objects, values_alone
from trident.states.outside.port import OutsideRows

_HEADERS = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>")


class Message(NamedTuple):
    """One message; a tombstone has no value."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True)
class MessageForm:
    """The fields that messages are made of.

    A field that is alone goes as it is where it is binary, as UTF-8 where it is text, else as JSON; several are a JSON
    object. JSON is as ``KafkaSpout(value="json")`` reads it: times are RFC 3339, binary is base64, decimals are texts.

    Attributes:
        key: the fields of the key; none: messages have no key.
        value: the field of the value; None: all fields but the headers, as an object.
        headers: the field of the headers; None: there are none.
    """

    key: tuple[str, ...]
    value: str | None
    headers: str | None

    def check(self, rows: OutsideRows, what: str) -> None:
        """Raises FieldError or TopologyError for rows that messages cannot be made of."""
        kinds = {field.name: field.dataType for field in rows.schema}
        named = [*self.key, *filter(None, (self.value, self.headers))]
        missing = [name for name in named if name not in kinds]
        if missing:
            raise FieldError(
                f"{what} is made of fields that its rows do not have", found=", ".join(missing), expected=list(kinds)
            )
        if rows.upserts and set(self.key) != set(rows.keys):
            raise TopologyError(
                f"{what} with Upsert needs the key of the Upsert as the key of its messages",
                found=", ".join(self.key) or "none",
                expected=f"key={list(rows.keys)!r}",
            )
        for name in {*self.key, *([self.value] if self.value else self._of_object(list(kinds)))}:
            check_json(kinds[name], f"the field {name!r} of {what}")
        if self.headers and kinds[self.headers].simpleString() not in _HEADERS:
            raise FieldError(
                f"the field {self.headers!r} of {what} cannot be headers",
                found=kinds[self.headers].simpleString(),
                expected=" or ".join(_HEADERS),
            )

    def messages(self, batches: Iterator[pa.RecordBatch], upserts: bool, what: str) -> Iterator[Message]:
        """One message for each row, in their order; with upserts a tombstone where the key is deleted.

        Raises:
            TridentError: a row that no message can be made of.
        """
        for batch in batches:
            keys = self._keys(batch, what)
            if upserts and None in keys:
                raise TridentError(
                    f"a row of {what} has no key", found="null", expected="a key in each row of an Upsert"
                )
            gone = batch.column(DELETED_COLUMN).to_pylist() if upserts else [False] * len(keys)
            headers = self._headers_of(batch, self.headers, what) if self.headers else [None] * len(keys)
            for key, value, deleted, found in zip(keys, self._values(batch, what), gone, headers):
                yield Message(key, None if deleted else value, None if found is None else _headers(found, what))

    def _keys(self, batch: pa.RecordBatch, what: str) -> Sequence[bytes | None]:
        if not self.key:
            return [None] * batch.num_rows
        return values_alone(batch, self.key[0], what) if len(self.key) == 1 else objects(batch, self.key, what)

    def _values(self, batch: pa.RecordBatch, what: str) -> Sequence[bytes | None]:
        if self.value is not None:
            return values_alone(batch, self.value, what)
        return objects(batch, self._of_object(batch.schema.names), what)

    def _headers_of(self, batch: pa.RecordBatch, name: str, what: str) -> Sequence[Any]:
        return [row[name] for row in as_python(batch.select([name]), what, "headers of Kafka")]

    def _of_object(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in (self.headers, DELETED_COLUMN)]


def _headers(found: Sequence[Any], what: str) -> list[tuple[str, bytes | None]]:
    pairs = []
    for one in found:
        if one is None or one["key"] is None:
            raise TridentError(f"a row of {what} has a header without a key")
        value = one["value"]
        pairs.append((one["key"], value.encode() if isinstance(value, str) else value))
    return pairs
