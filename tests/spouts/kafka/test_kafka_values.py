"""Values of messages as text, JSON, Avro, JSON Schema and Protobuf: strictly, and those that do not parse by name."""

from __future__ import annotations

import datetime
import importlib
import json
import pickle
import re
import socket
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from trident import KafkaSpout
from trident.coordinators.errors import EnvironmentProblem, TopologyError
from trident.kafka.client import KafkaSettings
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka import decoding
from trident.spouts.kafka.decoding import Decoded, JsonDecoder, RegistryDecoder, TextDecoder
from trident.udf.types import as_schema
from trident.workers.failures import SOURCE, find_report

SECRET = "pass-of-the-registry"
NEEDED = StructType([StructField("n", LongType(), nullable=False)])


def json_values(schema: Any, *values: bytes | None) -> Decoded:
    decoder = pickle.loads(pickle.dumps(JsonDecoder(as_schema(schema, "test"))))  # as it goes to tasks
    return decoder.decode(values, ["t"] * len(values))


def test_text_is_utf8_and_one_bad_value_spoils_no_other() -> None:
    good = TextDecoder().decode(["ü".encode(), None, b""], ["t"] * 3)
    assert good == (pa.array(["ü", None, ""]), {})
    values, problems = TextDecoder().decode([b"a", b"\xff", None, b"b"], ["t"] * 4)
    assert values.to_pylist() == ["a", None, None, "b"] and list(problems) == [1]


def test_json_has_the_fields_of_the_schema_and_tombstones_are_null() -> None:
    values, problems = json_values(
        "word string, n long, at timestamp, price decimal(6,2), tags array<string>, more map<string, int>, "
        "in struct<a: boolean, b: double, c: binary, d: date>",
        b'{"word": "w", "n": 1, "at": "2026-05-01T12:00:00+02:00", "price": "1.50", "tags": ["x", null], "else": [1],'
        b' "more": {"k": 1}, "in": {"a": true, "b": 2, "c": "AAE=", "d": "2026-05-01"}}',
        None,
        b"{}",
    )
    at = datetime.datetime(2026, 5, 1, 10, tzinfo=datetime.timezone.utc)
    inner = {"a": True, "b": 2.0, "c": b"\0\1", "d": datetime.date(2026, 5, 1)}
    first, tombstone, empty = values.to_pylist()
    assert first == {
        "word": "w",
        "n": 1,
        "at": at,
        "price": Decimal("1.50"),
        "tags": ["x", None],
        "more": [("k", 1)],
        "in": inner,
    }
    assert tombstone is None and set(empty.values()) == {None} and not problems


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ("n long", b"", "truncated"),
        ("n long", b"{", "truncated"),
        ("n long", b"[1]", "Expected `object`"),
        ("n long", b"null", "got `null`"),
        ("n long", b'{"n": "1"}', r"Expected `int \| null`, got `str` - at `\$.n`"),
        ("n long", b'{"n": 1.5}', "got `float`"),
        ("n long", b'{"n": 9223372036854775808}', "<= 9223372036854775807|out of range|got"),
        ("n tinyint", b'{"n": 128}', "<= 127"),
        ("w string", b'{"w": "\xff"}', "UTF-8|invalid"),
        ("at timestamp", b'{"at": "2026-05-01T12:00:00"}', "timezone"),
        ("p decimal(4,2)", b'{"p": "1.234"}', "(?i)decimal|rescal"),
        (NEEDED, b"{}", "'n' is missing or null, and is NOT NULL"),
        (StructType([StructField("a", ArrayType(NEEDED))]), b'{"a": [{"n": 1}, {}]}', "'n' is missing or null"),
    ],
)
def test_values_that_do_not_parse_are_told_with_their_reason(schema: Any, value: bytes, problem: str) -> None:
    values, problems = json_values(schema, None, value, None)
    assert values.to_pylist() == [None] * 3 and list(problems) == [1]
    assert re.search(problem, problems[1]), problems[1]


def test_debeziums_messages_are_read_by_their_schema_and_others_are_named() -> None:
    decoder = KafkaSpout("h:1", "t", value="debezium", value_schema="id long, at timestamp")._format.decoder()
    assert decoder is not None
    fields = [{"field": "id", "type": "int64"}, {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    change = {"op": "c", "after": {"id": 1, "at": 1_000}, "source": {"lsn": 7, "db": "d"}}
    good = json.dumps({"schema": schema, "payload": change}).encode()
    unknown, user, cut = json.dumps(change).encode(), b'{"op": "m", "source": {"lsn": 8}}', b'{"op": "t"}'
    values, problems = pickle.loads(pickle.dumps(decoder)).decode([good, None, unknown, user, cut], ["t"] * 5)
    first, tombstone, _, of_user, _ = values.to_pylist()
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    place = {"lsn": 7, "file": None, "pos": None, "row": None}
    assert first == {"op": "c", "before": None, "after": {"id": 1, "at": at}, "source": place}
    assert tombstone is None and of_user["op"] == "m" and list(problems) == [2, 4]
    assert "column at: a number for a timestamp" in problems[2] and "op is t" in problems[4]


@given(st.lists(st.none() | st.binary(max_size=6) | st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1)})))
def test_of_any_mixture_the_good_values_are_there_and_the_others_are_named(mixture: list[Any]) -> None:
    raw = [json.dumps(one).encode() if isinstance(one, dict) else one for one in mixture]
    values, problems = json_values("n long", *raw)
    assert len(values) == len(raw)
    for number, (one, value) in enumerate(zip(mixture, values.to_pylist())):
        if isinstance(one, dict):
            assert value == one and number not in problems
        elif one is None:
            assert value is None and number not in problems
        else:
            assert (value is None) == (number in problems)


# --- by a schema registry -----------------------------------------------------------------------


class Registry:
    """The REST of a schema registry, as far as serializers need it; with a password."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.away = False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.asked.append(self.path)
                parts = self.path.partition("?")[0].split("/")  # /schemas/ids/ID
                if registry.away:
                    self._send(503, {"error_code": 50301, "message": "later"})
                elif "Basic" not in self.headers.get("Authorization", ""):
                    self._send(401, {"error_code": 401, "message": "no password"})
                elif parts[1:3] == ["schemas", "ids"] and int(parts[3]) in registry.schemas:
                    self._send(200, registry.schemas[int(parts[3])])
                else:
                    self._send(404, {"error_code": 40403, "message": "Schema not found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known = next((number for number, one in registry.schemas.items() if one == body), None)
                number = known or len(registry.schemas) + 1
                registry.schemas[number] = body
                subject = self.path.split("/")[2]
                self._send(200, {"id": number, "subject": subject, "version": 1, **body})

            def _send(self, status: int, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def client(self) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        return SchemaRegistryClient({"url": self.url, "basic.auth.user.info": f"reader:{SECRET}"})

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    pytest.importorskip(
        "fastavro", reason="NOT TESTED: schema registries. Do: pip install 'trident-spark[kafka-registry]'"
    )
    pytest.importorskip("jsonschema")
    pytest.importorskip("google.protobuf")
    made = Registry()
    yield made
    made.end()


def by_registry(registry: Registry, form: str, schema: str, message: str | None = None) -> RegistryDecoder:
    config = {"basic.auth.user.info": f"reader:{SECRET}", "max.retries": 0}
    connection = KafkaSettings(registry.url, config, {}, "the registry of a KafkaSpout").connection()
    return pickle.loads(pickle.dumps(RegistryDecoder(form, as_schema(schema, "test"), connection, message)))


def context(topic: str = "orders") -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "n", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "raw", "type": "bytes"},
    ],
}
AT = datetime.datetime(2026, 5, 1, 10, 0, 0, 123, tzinfo=datetime.timezone.utc)


def test_a_registry_that_takes_connections_and_is_silent_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastavro", reason="NOT TESTED: schema registries")
    monkeypatch.setattr(decoding, "_REGISTRY_SECS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = KafkaSettings(f"http://127.0.0.1:{silent.getsockname()[1]}", {"max.retries": 0}, {}, "a registry")
        decoder = RegistryDecoder("avro", as_schema("item string", "test"), settings.connection())
        with pytest.raises(SourceFailure) as raised:
            decoder.decode([bytes(5) + b"x"], ["orders"])
    assert "Timeout" in find_report(raised.value, SOURCE)["found"]


def test_avro_by_its_writers_schema(registry: Registry) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    write = AvroSerializer(registry.client(), json.dumps(AVRO))
    order = {"item": "hat", "n": 2, "at": AT, "price": Decimal("1.50"), "raw": b"\xff"}
    values = [write(order, context()), None, b"\0\0\0\0\x63x", b"no", write({**order, "n": None}, context())]
    decoder = by_registry(
        registry, "avro", "n long, item string, at timestamp, price decimal(6,2), raw binary, new int"
    )
    found, problems = decoder.decode(values[:2] + values[4:], ["orders"] * 3)
    assert found.to_pylist() == [{**order, "new": None}, None, {**order, "n": None, "new": None}] and not problems
    asked = len(registry.asked)
    found, problems = decoder.decode(values, ["orders"] * 5)
    assert len(registry.asked) == asked + 1, "schemas are kept: only that of 99 is asked for"
    assert [one is None for one in found.to_pylist()] == [False, True, True, True, False]
    assert "no schema 99" in problems[2] and "the magic byte" in problems[3] and len(problems) == 2
    torn = decoder.decode([values[0][:-1]], ["orders"])
    assert list(torn.problems) == [0]
    other = by_registry(registry, "avro", "item long").decode(values[:1], ["orders"])
    assert "Expected `int | null`, got `str`" in other.problems[0]


def test_json_schema_is_validated_by_its_writers_schema(registry: Registry) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0}, "at": {"type": "string"}},
    }
    write = JSONSerializer(json.dumps(schema), registry.client())
    value = write({"n": 3, "at": "2026-05-01T10:00:00.000123Z"}, context())
    below = value[:5] + b'{"n": -1}'
    found, problems = by_registry(registry, "json-schema", "n long, at timestamp").decode(
        [value, below, None], ["orders"] * 3
    )
    assert found.to_pylist() == [{"n": 3, "at": AT}, None, None] and list(problems) == [1]


def test_protobuf_by_a_generated_class_that_is_named(registry: Registry, tmp_path: Path, monkeypatch) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    (tmp_path / "orders_of_tests_pb2.py").write_text(PROTOBUF)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("orders_of_tests_pb2")
    write = ProtobufSerializer(module.Order, registry.client(), {"use.deprecated.format": False})
    value = write(module.Order(item="hat", n=2**60, raw=b"\xff", tags=["a"]), context())
    decoder = by_registry(
        registry, "protobuf", "item string, n long, raw binary, tags array<string>", "orders_of_tests_pb2:Order"
    )
    found, problems = decoder.decode([value, None, value[:7]], ["orders"] * 3)
    assert found.to_pylist()[:2] == [{"item": "hat", "n": 2**60, "raw": b"\xff", "tags": ["a"]}, None]
    assert list(problems) == [2]
    sys.modules.pop("orders_of_tests_pb2")


PROTOBUF = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="orders_of_tests.proto", package="tests", syntax="proto3")
order = file.message_type.add(name="Order")
for number, (name, kind, label) in enumerate([("item", 9, 1), ("n", 3, 1), ("raw", 12, 1), ("tags", 9, 3)], 1):
    order.field.add(name=name, number=number, type=kind, label=label)
pool = descriptor_pool.Default()
pool.Add(file)
DESCRIPTOR = pool.FindFileByName("orders_of_tests.proto")
Order = message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Order"))
"""


def test_a_registry_that_does_not_answer_fails_the_batch_and_blames_no_message(registry: Registry) -> None:
    registry.end()
    with pytest.raises(SourceFailure, match="the schema registry gives no schema") as raised:
        by_registry(registry, "avro", "n long").decode([b"\0\0\0\0\x07x"], ["orders"])
    assert SECRET not in str(raised.value)
    refused = Registry()
    connection = KafkaSettings(refused.url, {"max.retries": 0}, {}, "the registry").connection()
    with pytest.raises(SourceFailure, match="gives no schema"):
        RegistryDecoder("avro", as_schema("n long", "test"), connection).decode([b"\0\0\0\0\x07x"], ["orders"])
    refused.end()


def test_a_registry_that_goes_away_between_two_questions_blames_no_message(registry: Registry) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    value = AvroSerializer(registry.client(), json.dumps(AVRO))(
        {"item": "hat", "n": 2, "at": AT, "price": Decimal(1), "raw": b""}, context()
    )
    decoder = by_registry(registry, "avro", "item string")
    decoder._know(value)
    registry.away = True
    with pytest.raises(SourceFailure, match="gives no schema"):
        decoder.decode([value], ["orders"])


def test_a_library_that_is_missing_blames_no_message(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = by_registry(registry, "avro", "item string")
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry.avro", None)
    with pytest.raises(EnvironmentProblem, match=r"trident-spark\[kafka-registry\]"):
        decoder.decode([b"\0\0\0\0\1x"], ["orders"])
    absent = by_registry(registry, "protobuf", "item string", "no_such_module_of_tests:Order")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_tests"):
        absent.decode([b"\0\0\0\0\1x"], ["orders"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "xml"}, "bytes, text, json, debezium, avro, json-schema, protobuf"),
        ({"value": "json"}, "needs value_schema"),
        ({"value": "text", "value_schema": "n long"}, "takes no value_schema"),
        ({"value": "json", "value_schema": "i map<int, int>"}, "cannot be read as this type"),
        ({"value": "avro", "value_schema": "n long"}, "needs registry"),
        ({"value": "json", "value_schema": "n long", "registry": "http://r"}, "takes no registry"),
        ({"value": "protobuf", "value_schema": "n long", "registry": "http://r"}, "needs message"),
        ({"value": "protobuf", "value_schema": "n long", "registry": "http://r", "message": "Order"}, "'module:Class'"),
        (
            {"value": "avro", "value_schema": "n long", "registry": f"http://u:{SECRET}@r"},
            "the registry of a KafkaSpout",
        ),
        ({"value": "debezium"}, "needs value_schema"),
        ({"value": "debezium", "value_schema": "a map<int, int>"}, "cannot read column a"),
    ],
)
def test_formats_that_cannot_be_used_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message) as raised:
        KafkaSpout("h:9092", "t", **arguments)
    assert SECRET not in str(raised.value)


def test_the_schema_says_the_format() -> None:
    assert KafkaSpout("h:1", "t", value="text").output_schema["value"].dataType.simpleString() == "string"
    spout = KafkaSpout(
        "h:1", "t", value="json", value_schema="n long, w string", columns=["value"], dead_letters="dead"
    )
    assert spout.output_schema.simpleString() == "struct<value:struct<n:bigint,w:string>>"
    assert spout.table.name == "dead" and spout.table_schema.names[-1] == "error"
    assert KafkaSpout("h:1", "t").table is None
