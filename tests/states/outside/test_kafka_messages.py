"""Rows as messages of Kafka: as the reading side reads them back, and refused where it could not."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from trident import FixedBatchSpout, KafkaState, TridentTopology
from trident.coordinators.errors import TopologyError, TridentError
from trident.spouts.kafka.decoding import JsonDecoder
from trident.states.core.tables import DELETED_COLUMN
from trident.states.outside.port import OutsideRows
from trident.states.outside.row_formats import Message, MessageForm
from trident.udf.types import as_schema

WHEN = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, datetime.timezone.utc)
SCHEMA = (
    "s string, i bigint, f double, d decimal(38,9), b binary, day date, at timestamp, local timestamp_ntz, no boolean, "
    "list array<struct<m: map<string, decimal(5,2)>>>"
)
ROW = {
    "s": 'ü " \\ \u2028',
    "i": 2**63 - 1,
    "f": 0.1,
    "d": Decimal("-12345678901234567890.000000001"),
    "b": b"\x00\xff",
    "day": datetime.date(1, 1, 1),
    "at": WHEN,
    "local": WHEN.replace(tzinfo=None),
    "no": None,
    "list": [{"m": {"a": Decimal("1.50"), "b": None}}, None],
}


def batch(**columns: list) -> pa.RecordBatch:
    return pa.record_batch(columns)


def messages(form: MessageForm, *batches: pa.RecordBatch, upserts: bool = False) -> list[Message]:
    return list(form.messages(iter(batches), upserts, "state s"))


def test_a_row_as_json_is_read_back_as_it_was() -> None:
    arrow = pa.struct([("m", pa.map_(pa.string(), pa.decimal128(5, 2)))])
    kinds = {
        "d": pa.decimal128(38, 9),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "no": pa.bool_(),
        "list": pa.list_(arrow),
    }
    given = {**ROW, "list": [{"m": list(ROW["list"][0]["m"].items())}, None]}
    row = pa.record_batch({name: pa.array([value], kinds.get(name)) for name, value in given.items()})
    (message,) = messages(MessageForm((), None, None), row)
    decoded = JsonDecoder(as_schema(SCHEMA, "test")).decode([message.value], ["t"])
    assert decoded.values.to_pylist() == [given], decoded


def test_a_field_alone_goes_as_it_is_and_several_as_an_object() -> None:
    rows = batch(k=["a", None], b=[b"\xff", None], n=[1, 2], h=[[{"key": "x", "value": b"1"}], None])
    assert messages(MessageForm(("k",), "b", "h"), rows) == [
        Message(b"a", b"\xff", [("x", b"1")]),
        Message(None, None, None),
    ]
    one, other = messages(MessageForm(("k", "n"), "n", None), rows)
    assert one == (b'{"k":"a","n":1}', b"1", None) and other.key == b'{"k":null,"n":2}'
    (one, _) = messages(MessageForm(("n",), None, "h"), rows)
    assert one.value == b'{"k":"a","b":"/w==","n":1}' and one.key == b"1"


@pytest.mark.parametrize("part", ["key", "value"])
def test_headers_that_are_not_utf_8_are_refused_by_name(part: str) -> None:
    text = pa.array([b"b\xff"]).cast(pa.string(), safe=False)
    usual = pa.array(["x"])
    pairs = pa.StructArray.from_arrays([text if name == part else usual for name in ("key", "value")], ["key", "value"])
    rows = batch(n=[1], h=pa.ListArray.from_arrays([0, 1], pairs))
    said = "state s cannot be written as headers of Kafka; found: .*not UTF-8, in 'h'"
    with pytest.raises(TridentError, match=said):
        messages(MessageForm((), "n", "h"), rows)


def test_an_upsert_is_a_changelog_with_tombstones() -> None:
    rows = batch(k=["a", "b"], n=[1, None], **{DELETED_COLUMN: [False, True]})
    form = MessageForm(("k",), None, None)
    assert messages(form, rows, upserts=True) == [(b"a", b'{"k":"a","n":1}', None), (b"b", None, None)]
    with pytest.raises(TridentError, match="no key"):
        messages(form, batch(k=[None], n=[1], **{DELETED_COLUMN: [False]}), upserts=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(value: float) -> None:
    """The error names the field, and shows nothing of the row."""
    row = batch(k=["secret-word"], x=[[value]])
    for form in (MessageForm((), None, None), MessageForm(("x",), "k", None), MessageForm(("k", "x"), "k", None)):
        with pytest.raises(TridentError, match="cannot be written as JSON; found: NaN or an infinity in 'x'") as raised:
            messages(form, row)
        assert "secret-word" not in str(raised.value)


def test_two_states_of_a_topology_cannot_have_one_group() -> None:
    stream = (made := TridentTopology("top")).new_stream("words", FixedBatchSpout("word string", [[("a",)]]))
    stream.partition_persist(KafkaState("h:9092", "t", name="a", group="g"))
    stream.partition_persist(KafkaState("h:9092", "t", name="b"))
    with pytest.raises(TopologyError, match="state a .*and state c .*have one group.*group='g'"):
        stream.partition_persist(KafkaState("h:9092", "u", name="c", group="g"))
    assert sorted(made.graph.sinks) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "schema", "keys", "message"),
    [
        ({"key": "nokey"}, "k string", (), "fields that its rows do not have; found: nokey"),
        ({"value": "v"}, "k string", (), "fields that its rows do not have; found: v"),
        ({}, "k string, v string", ("k",), "needs the key of the Upsert"),
        ({"key": "v"}, "k string, v string", ("k",), "needs the key of the Upsert"),
        ({}, "v map<int, string>", (), "cannot be written as JSON"),
        ({}, "v struct<a: array<map<bigint, string>>>", (), "cannot be written as JSON"),
        ({"headers": "v"}, "k string, v map<string, string>", (), "cannot be headers"),
    ],
)
def test_rows_that_no_message_can_be_made_of_are_refused_when_the_topology_is_built(arguments, schema, keys, message):
    rows = OutsideRows("", as_schema(schema, "test"), keys, bool(keys))
    with pytest.raises(TopologyError, match=message):
        KafkaState("h:9092", "t", **arguments).check_rows(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": ""}, "topic of a KafkaState"),
        ({"topic": "orders/out"}, "found: 'orders/out'; expected: a name of at most 249 letters"),
        ({"bootstrap": "u:secret-word@h:1"}, "the brokers of a KafkaState"),
        ({"key": 3}, "key of a KafkaState"),
        ({"partitions": 0}, "partitions of a KafkaState"),
        ({"topic_partitions": True}, "topic_partitions of a KafkaState"),
        ({"group": ""}, "group of a KafkaState"),
        ({"name": "a-b"}, "state name"),
        ({"config": {"transactional.id": "x"}}, "there is one for each part"),
        ({"config": {"acks": 0}}, "all replicas in sync"),
        ({"config": {"transaction.timeout.ms": 500}}, "transaction.timeout.ms .*found: 500; expected: .*from 1,000 to"),
        ({"config": {"message.timeout.ms": "soon"}}, "message.timeout.ms .*found: 'soon'"),
        (
            {"config": {"transaction.timeout.ms": 5000, "message.timeout.ms": 6000}},
            "message.timeout.ms of a KafkaState is longer than transaction.timeout.ms.*found: 6,000; .*at most 5,000",
        ),
        ({"config": {"message.timeout.ms": 90_000}}, "expected: at most 60,000. Raise transaction.timeout.ms"),
        ({"config": {"delivery.timeout.ms": 9}}, "give it as message.timeout.ms"),
        ({"secrets": {"sasl.password": "secret-word"}}, "'env:VARIABLE' or 'file:/path'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as raised:
        KafkaState(**{"bootstrap": "h:9092", "topic": "t", **arguments})
    assert "secret-word" not in str(raised.value)


def test_a_state_is_named_after_its_topic_and_shows_no_secret() -> None:
    state = KafkaState("h:9092", "orders.out-v2", config={"sasl.password": "secret-word"})
    assert state.name == "orders_out_v2" and "secret-word" not in repr(state)
    state.check_rows(OutsideRows("", StructType()))


@pytest.mark.parametrize(
    "form", [MessageForm((), None, None), MessageForm((), "d", None), MessageForm(("d",), "i", None)]
)
def test_a_date_that_python_has_not_is_an_error_that_names_its_field(form: MessageForm) -> None:
    """Spark has years above 9999."""
    far = batch(i=[1, 2], d=pa.array([0, 3_000_000], pa.date32()))
    with pytest.raises(TridentError, match="a row of state s cannot be written as JSON; found: .* in 'd'") as caught:
        messages(form, far)
    assert type(caught.value) is TridentError and "10183" not in str(caught.value)
