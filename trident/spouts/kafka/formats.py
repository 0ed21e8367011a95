"""The format of messages' values, as the user of a KafkaSpout gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from trident.coordinators.errors import TopologyError, described
from trident.kafka.settings import KafkaSettings
from trident.spouts.kafka.decoding import (
    DebeziumDecoder,
    Decoder,
    JsonDecoder,
    RegistryDecoder,
    TextDecoder,
    python_type,
)
from trident.udf.schemas import as_schema, table_schema
from trident.workers.debezium import EnvelopeReader

BY_REGISTRY = ("avro", "json-schema", "protobuf")
FORMATS = ("bytes", "text", "json", "debezium", *BY_REGISTRY)


class ValueFormat:
    """How values become a column.

    Args:
        form: one of FORMATS.
        schema: the fields of the column, for all but bytes and text.
        registry: the registry's url, or settings of its client with ``url``, for those that have one.
        secrets: further settings of its client, by where they are kept.
        message: of protobuf: ``module:Class``.

    Raises:
        TopologyError: they do not go together.
    """

    def __init__(
        self,
        form: Any,
        schema: Union[str, StructType, None],
        registry: Union[str, Mapping[str, Any], None],
        secrets: Mapping[str, str] | None,
        message: str | None,
        user: str,
    ) -> None:
        if form not in FORMATS:
            raise TopologyError(f"the value of {user} is unknown", found=described(form), expected=", ".join(FORMATS))
        self.form = form
        _go_together(form, schema is not None, form not in ("bytes", "text"), "value_schema", user)
        _go_together(form, registry is not None, form in BY_REGISTRY, "registry", user)
        _go_together(form, message is not None, form == "protobuf", "message", user)
        self._envelopes: EnvelopeReader | None = None
        self.schema: StructType | None = None
        if form == "debezium":
            self._envelopes = EnvelopeReader(table_schema(schema, f"value of {user}"))
            self.schema = self._envelopes.envelope
        elif schema is not None:
            self.schema = as_schema(schema, f"value of {user}")
            python_type(self.schema)
        self._message = message
        if message is not None and (not isinstance(message, str) or message.count(":") != 1):
            raise TopologyError(
                f"the message of {user} is no class", found=described(message), expected="'module:Class'"
            )
        self._registry: KafkaSettings | None = None
        if registry is not None:
            given = {"url": registry} if isinstance(registry, str) else dict(registry)
            url = given.pop("url", None)
            self._registry = KafkaSettings(url, given, secrets, f"the registry of {user}")

    @property
    def column(self) -> DataType:
        """The type of the column ``value``; fields that must be there are checked where values are decoded."""
        if self.schema is not None:
            return self.schema.toNullable()
        return StringType() if self.form == "text" else BinaryType()

    @property
    def runs_code_of_users(self) -> bool:
        """Tells whether it imports a module of the user's, so that the driver must not decode."""
        return self.form == "protobuf"

    def decoder(self) -> Decoder | None:
        """None: values stay as they are.

        Raises:
            ConfigError: a secret is not where it is said to be.
        """
        if self.form == "bytes":
            return None
        if self.form == "text":
            return TextDecoder()
        if self._envelopes is not None:
            return DebeziumDecoder(self._envelopes)
        assert self.schema is not None
        if self._registry is None:
            return JsonDecoder(self.schema)
        return RegistryDecoder(self.form, self.schema, self._registry.connection(), self._message)


def _go_together(form: str, given: bool, needed: bool, name: str, user: str) -> None:
    if given != needed:
        raise TopologyError(
            f"{user} with value={form!r} " + (f"needs {name}" if needed else f"takes no {name}"),
            found="none" if needed else name,
        )
