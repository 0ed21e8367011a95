"""A transactional source of the messages of Kafka topics (docs/semantics.md 3, docs/kafka.md).

`coordinator.py` looks where partitions end and cuts ranges of offsets (`ranges.py`); `emitter.py` turns them into
rows, which `reader.py` reads on executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Union

from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from trident.coordinators.errors import TopologyError, described
from trident.kafka.client import KAFKA_OF_ALL, KafkaSettings, check_topic
from trident.spouts import contracts as spout_arguments
from trident.spouts.checkpoint import KAFKA, SourceOffset
from trident.spouts.contracts import Json, SpoutContext, SpoutKind
from trident.spouts.kafka.cluster import GroupCommits, KafkaCluster, Start, Starts, batch_after, check_start
from trident.spouts.kafka.coordinator import KafkaCoordinator
from trident.spouts.kafka.decoding import (
    DebeziumDecoder,
    Decoder,
    JsonDecoder,
    RegistryDecoder,
    TextDecoder,
    python_type,
)
from trident.spouts.kafka.emitter import KafkaEmitter
from trident.spouts.kafka.reader import Reading
from trident.spouts.kafka.rows import COLUMNS, LETTER_COLUMNS
from trident.spouts.ranged import AdaptiveBatchSize
from trident.states.core.addresses import is_this_host
from trident.states.delta.append import DeltaAppend
from trident.udf.types import as_schema, table_schema
from trident.workers.debezium import EnvelopeReader

# The format of messages' values, as the user of a KafkaSpout gives it.


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
        _require_together(form, schema is not None, form not in ("bytes", "text"), "value_schema", user)
        _require_together(form, registry is not None, form in BY_REGISTRY, "registry", user)
        _require_together(form, message is not None, form == "protobuf", "message", user)
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


def _require_together(form: str, given: bool, needed: bool, name: str, user: str) -> None:
    if given != needed:
        raise TopologyError(
            f"{user} with value={form!r} " + (f"needs {name}" if needed else f"takes no {name}"),
            found="none" if needed else name,
        )


ISOLATIONS = ("read_committed", "read_uncommitted")
# A batch of so many takes hardly longer than one of a few, and a backlog cut finer waits for the batches before.
_USUAL_ROWS = 5_000
# The settings that the spout itself decides, so that no message is lost or read twice.
_OURS = {
    "auto.offset.reset": "the spout says where each batch begins",
    "enable.auto.commit": "positions are stored with each transaction",
    "enable.auto.offset.store": "positions are stored with each transaction",
    "enable.partition.eof": "the end of a range is found by it",
    "isolation.level": "give it as isolation=",
    "group.instance.id": "partitions are assigned by the spout",
    "partition.assignment.strategy": "partitions are assigned by the spout",
    "fetch.error.backoff.ms": "a range that has expired is an error at once",
}


class KafkaSpout:
    """The messages of Kafka topics, each once, in the order of its partition.

    A batch is a range of offsets of each partition, stored with the transaction before any message is used; a
    replay, in another process too, reads exactly those offsets again. Kafka's own transactions are followed: with
    ``read_committed`` a batch ends before the first message that is not yet decided, and has none that was aborted.

    A row is a message: ``key`` and ``value`` (bytes; null where there is none, so a tombstone's value is null),
    ``headers`` (null without any), ``timestamp``, ``topic``, ``partition`` and ``offset``.

    New partitions, and new topics of a pattern, are read from their first message on as soon as they are seen.

    Nothing is skipped silently. These end the topology with a SourceError: messages that expired before they were
    read; a topic that was deleted, or deleted and made again under its name (its id tells); a log that ends before
    what was read, as after an unclean election. A broker that is away ends nothing: no new batch begins without it,
    and those in flight wait for it. Of a compacted topic a batch has the messages that are still there when it is
    read: an :class:`OpaqueKafkaSpout` reads them once for all that is made of them.

    Needs the client on each machine that reads: ``pip install 'trident-spark[kafka]'``.

    Args:
        bootstrap: brokers: ``"host:port,host:port"``.
        topics: the name of a topic, or several; or
        pattern: a regular expression for the whole name; internal topics (``__…``) are left out.
        start: where the stream begins when the topology first starts: ``"earliest"``; ``"latest"``; a datetime with
            a time zone: the first message from then on; or ``{"topic": {partition: offset}}``.
        start_group: begin at the offsets that this consumer group has committed, and at ``start`` in partitions of
            which it has none: to move a consumer here. Not looked at afterwards.
        commit_group: commit the offsets of transactions that have succeeded to this group, for monitors of lag. They
            are never read back; a failure is logged and fails nothing.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
        columns: those of the row that are wanted; fewer are faster.
        value: the format of values: ``"bytes"``, ``"text"`` (UTF-8), ``"json"``; ``"debezium"``: Debezium's messages in
            JSON, for ``stream.debezium()``; by a schema registry ``"avro"``, ``"json-schema"`` or ``"protobuf"``, as
            Confluent's serializers write them. A tombstone stays null.
        value_schema: the fields of the column ``value``, for all but bytes and text: a StructType, or DDL text; for
            "debezium" the columns of the table. A
            field that a message lacks is null, and where it is not nullable the value does not parse; further
            fields are left out.
        registry: url of the schema registry, or settings of Confluent's client for it, with ``url``.
        registry_secrets: further ones by where they are kept, as ``secrets``.
        message: of protobuf: ``"module:Class"`` of the generated class, which the tasks import.
        dead_letters: name of a Delta table for messages that cannot be decoded (a value that does not parse, a time
            that no timestamp can be, headers that are not UTF-8): each is in the results or in it, by the same
            transaction, with all columns that can be read, the value as bytes, and ``error``. Of a damaged record batch
            there is one row, whose ``error`` has the offsets. None: such a message fails the batch, by an error with
            its topic, partition and offset.
        min_rows: up to so many messages a batch takes all that wait; by default 5,000, or max_rows if that is less.
        max_rows: how many it has at most.
        config: settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``; in no text or stored record.
        secrets: further settings by where they are kept: ``{"sasl.password": "env:KAFKA_PASSWORD"}`` or
            ``"file:/run/secrets/kafka"``; read when the topology starts, and sent to the tasks.
        poll_interval_secs: least time between two looks at where partitions end.
        patience_secs: without a word from the brokers for so long a read fails, and is tried again.
        forget: ids of topics, as an error names them, that were deleted: what was not read of them is given up, and
            a topic of that name is read from its first message on. It may stay.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    lossy = False

    def __init__(
        self,
        bootstrap: str,
        topics: Union[str, Sequence[str]] = (),
        *,
        pattern: str | None = None,
        start: Start = "earliest",
        start_group: str | None = None,
        commit_group: str | None = None,
        isolation: str = "read_committed",
        columns: Sequence[str] = tuple(COLUMNS),
        min_rows: int | None = None,
        max_rows: int = 500_000,
        value: str = "bytes",
        value_schema: Union[str, StructType, None] = None,
        registry: Union[str, Mapping[str, Any], None] = None,
        registry_secrets: Mapping[str, str] | None = None,
        message: str | None = None,
        dead_letters: str | None = None,
        config: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        poll_interval_secs: float = 0.05,
        patience_secs: float = 60.0,
        forget: Sequence[str] = (),
    ) -> None:
        user = f"a {type(self).__name__}"
        self._settings = KafkaSettings(bootstrap, config, secrets, user, _OURS)
        self.topics = _texts(topics, f"the topics of {user}")
        for topic in self.topics:
            check_topic(topic, f"the topics of {user}")
        self.pattern = _pattern(pattern, user)
        if bool(self.topics) == (pattern is not None):
            raise TopologyError(
                f"{user} needs topics, or a pattern of their names", found="both" if pattern is not None else "neither"
            )
        check_start(start, user, self.topics)
        self.start, self.forget = start, _texts(forget, f"forget of {user}")
        for name, group in (("start_group", start_group), ("commit_group", commit_group)):
            if group is not None and not (isinstance(group, str) and group):
                raise TopologyError(
                    f"{name} of {user} cannot be used", found=described(group), expected="a group's name"
                )
        self.start_group, self.commit_group = start_group, commit_group
        if isolation not in ISOLATIONS:
            raise TopologyError(
                f"the isolation of {user} is unknown", found=described(isolation), expected=" or ".join(ISOLATIONS)
            )
        self.isolation = isolation
        self.columns = _texts(columns, f"the columns of {user}")
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown or not self.columns:
            raise TopologyError(
                f"the columns of {user} cannot be used", found=", ".join(unknown) or "none", expected=", ".join(COLUMNS)
            )
        self._format = ValueFormat(value, value_schema, registry, registry_secrets, message, user)
        self.table = None if dead_letters is None else DeltaAppend(dead_letters)
        sizes = AdaptiveBatchSize(min_rows, max_rows, usual=_USUAL_ROWS)  # raises when the bounds are impossible
        self.min_rows, self.max_rows = sizes.min_rows, max_rows
        self.poll_interval_secs = spout_arguments.seconds(f"poll_interval_secs of {user}", poll_interval_secs)
        self.patience_secs = spout_arguments.seconds(f"patience_secs of {user}", patience_secs, zero=False)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The brokers that it asks first, ``host:port``."""
        return self._settings.brokers

    def __repr__(self) -> str:
        read = repr(list(self.topics)) if self.topics else f"pattern={self.pattern!r}"
        return f"{type(self).__name__}({self._settings.bootstrap!r}, {read})"

    @property
    def output_schema(self) -> StructType:
        kinds = {field.name: field.dataType for field in _schema(COLUMNS)} | {"value": self._format.column}
        return StructType([StructField(name, kinds[name]) for name in self.columns])

    @property
    def table_schema(self) -> StructType:
        """Of the table of messages that cannot be decoded."""
        return _schema(LETTER_COLUMNS)

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A loopback address names other brokers on each host of a cluster."""
        return KAFKA_OF_ALL if any(is_this_host(f"kafka://{broker}") for broker in self._settings.brokers) else False

    def selects(self, topic: str) -> bool:
        """Tells whether the stream reads the topic."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    @property
    def acknowledges(self) -> bool:
        """Tells whether offsets are committed to a group, which another topology may commit to."""
        return self.commit_group is not None

    def get_coordinator(self, context: SpoutContext) -> KafkaCoordinator:
        """Connects to nothing yet.

        Raises:
            EnvironmentProblem: the client is not installed.
            ConfigError: a secret is not where it is said to be.
        """
        what = self._named(context)
        cluster = KafkaCluster(self._settings.connection(), self.isolation, what)
        starts = Starts(cluster, self.start, self.start_group, what)
        commits = None if self.commit_group is None else GroupCommits(cluster, self.commit_group)
        in_flight = context.options.get("max_spout_pending") or 3
        return KafkaCoordinator(self, cluster, starts, what, in_flight, commits)

    def get_emitter(self, context: SpoutContext) -> KafkaEmitter:
        connection, what = self._settings.connection(), self._named(context)
        group = str(connection.config.get("group.id", f"trident-{context.topology}-{context.tx_id}"))
        decoder = self._format.decoder() if "value" in self.columns else None
        reading = Reading(
            connection,
            group,
            self.isolation,
            self.columns,
            self.lossy,
            self.patience_secs,
            what,
            decoder,
            self.table is not None,
        )
        cluster = KafkaCluster(connection, self.isolation, what)
        schemas = (self.output_schema, self.table_schema)
        here = not self._format.runs_code_of_users
        return KafkaEmitter(context.spark, cluster, reading, schemas, self.forget, here)

    def reads_source(self, source: SourceOffset) -> bool:
        """Tells whether a source of Structured Streaming reads this stream's topics (trident.spouts.checkpoint)."""
        return source.kind == KAFKA and all(self.selects(topic) for topic in source.value)

    def position_after(self, source: SourceOffset, context: SpoutContext) -> Json:
        """Where the stream continues after a source's offset; queries the cluster (trident.spouts.checkpoint)."""
        what = self._named(context)
        cluster = KafkaCluster(self._settings.connection(), self.isolation, what)
        try:
            return batch_after(source, cluster, what).to_json()
        finally:
            cluster.close()

    def _named(self, context: SpoutContext) -> str:
        return f"the Kafka stream {context.tx_id!r}"


class OpaqueKafkaSpout(KafkaSpout):
    """The messages of Kafka topics where losses are taken: a range may come back with other messages.

    As :class:`KafkaSpout`, but messages that are gone are left out, with a warning in the log, and the stream goes on
    with what is there: behind expired messages at the first one that is left, and behind an unclean election at the
    end of the log. Each attempt reads its messages once, also where several states are made of them, so
    compaction between two reads does not show. Opaque: states that need the same batch at a replay are not exactly
    once with it.
    """

    kind = SpoutKind.OPAQUE
    lossy = True


def _schema(columns: Mapping[str, str]) -> StructType:
    return as_schema(", ".join(f"`{name}` {kind}" for name, kind in columns.items()), "a KafkaSpout")


def _texts(value: Any, what: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) and one for one in texts):
        raise TopologyError(f"{what} cannot be used", found=described(value), expected="names")
    if len(set(texts)) != len(texts):
        raise TopologyError(f"{what} cannot be used", found=described(value), expected="each name once")
    return tuple(texts)


def _pattern(pattern: Any, user: str) -> str | None:
    if pattern is None:
        return None
    try:
        if isinstance(pattern, str):
            re.compile(pattern)
            return pattern
        problem = "no text"
    except re.error as error:
        problem = str(error)
    raise TopologyError(
        f"the pattern of {user} cannot be used",
        found=f"{described(pattern)}: {problem}",
        expected="a regular expression, as text",
    )
