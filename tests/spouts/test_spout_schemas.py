"""How a spout of one's own says its fields: as text or a StructType, in its class, in __init__, or as a property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from trident import BatchSpout, PartitionedTridentSpout, RichSpout, TridentSpout, TridentTopology
from trident.coordinators.errors import TopologyError
from trident.testing import run_batch

SCHEMA = StructType([StructField("n", LongType(), True)])


class _Batches:
    def open(self, context: Any) -> None: ...
    def emit_batch(self, txid: int) -> Any: ...
    def ack(self, txid: int) -> None: ...
    def close(self) -> None: ...


class Batches(_Batches, BatchSpout):
    def __init__(self, schema: Any) -> None:
        self.output_schema = schema


class Whole(TridentSpout):
    def __init__(self, schema: Any) -> None:
        self.output_schema = schema

    def get_coordinator(self, context: Any) -> Any: ...
    def get_emitter(self, context: Any) -> Any: ...


class Parts(PartitionedTridentSpout):
    def __init__(self, schema: Any) -> None:
        self.output_schema = schema

    def get_coordinator(self, context: Any) -> Any: ...
    def get_partition_emitter(self, context: Any) -> Any: ...


class Messages(RichSpout):
    def __init__(self, schema: Any) -> None:
        self.output_schema = schema


class ByClass(_Batches):
    def __init__(self, schema: Any) -> None:
        type(self).output_schema = schema  # type: ignore[attr-defined]


class ByProperty(_Batches):
    def __init__(self, schema: Any) -> None:
        self.schema = schema

    @property
    def output_schema(self) -> Any:
        return self.schema


SPOUTS: list[Callable[[Any], Any]] = [Batches, Whole, Parts, Messages, ByClass, ByProperty]


def with_kind(spout: Any) -> Any:
    from trident import SpoutKind

    if isinstance(spout, Whole):
        spout.kind = SpoutKind.TRANSACTIONAL
    return spout


@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize("schema", [SCHEMA, "n long"], ids=["StructType", "text"])
def test_a_schema_is_taken_from_wherever_it_is_said(kind: Callable[[Any], Any], schema: Any) -> None:
    assert TridentTopology("t").new_stream("s", with_kind(kind(schema))).schema == SCHEMA


@pytest.mark.parametrize("kind", SPOUTS)
@pytest.mark.parametrize(
    ("schema", "found"), [("n", "without a type"), ("", "no output field"), (7, "has no spout"), (None, "has no spout")]
)
def test_what_is_no_schema_is_refused_when_the_topology_is_built(kind: Any, schema: Any, found: str) -> None:
    with pytest.raises(TopologyError, match=found):
        TridentTopology("t").new_stream("s", with_kind(kind(schema)))


def test_batches_have_the_fields_that_a_text_says(spark) -> None:
    stream = TridentTopology("t").new_stream("s", Batches("n long"))
    assert run_batch(stream.each("n", lambda n: n + 1, "m long"), [(1,)], spark=spark) == [(1, 2)]
