"""Which spouts say that they only read, and how a fork with any other is refused before it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tests.spouts.test_data_source_spout import Letters, Parts
from trident import DataSourceSpout, DeltaSpout, FileSpout, FixedBatchSpout, KafkaSpout, RateSpout
from trident.coordinators.errors import Halted
from trident.spouts.contracts import Acknowledges
from trident.spouts.executors import acknowledges, check_reads_only
from trident.spouts.structured_stream import StructuredStreamSpout


class Quiet(DataSource):
    def schema(self) -> str:
        return "n long"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return QuietReader()


class QuietReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}


class OwnStream(StructuredStreamSpout):
    pass


class OwnFiles(FileSpout):
    def get_coordinator(self, context: Any) -> Any:
        """Perhaps one that deletes what was read."""


class OwnFilesThatOnlyRead(OwnFiles):
    acknowledges = False


class Own:
    def get_coordinator(self, context: Any) -> Any: ...


class Silent(Acknowledges, Own):
    """Has the contract's property, which tells nothing."""


def kafka(group: str | None = None) -> KafkaSpout:
    return KafkaSpout("localhost:9092", "orders", commit_group=group)


def test_a_spout_that_can_change_its_source_says_so(tmp_path: Path) -> None:
    for spout in (
        FileSpout(tmp_path),
        DeltaSpout(tmp_path),
        RateSpout(1),
        FixedBatchSpout("n long", [[(1,)]]),
        kafka(),
    ):
        assert isinstance(spout, Acknowledges) and acknowledges(spout) is False
    assert acknowledges(kafka("billing")) is True
    assert acknowledges(DataSourceSpout(Quiet)) is False
    assert [acknowledges(DataSourceSpout(each, {"folder": tmp_path})) for each in (Letters, Parts)] == [True, True]
    assert acknowledges(object.__new__(OwnStream)) is True, "what Spark's checkpoint is told is told by a subclass, too"


def test_what_a_class_says_is_not_said_of_another_coordinator(tmp_path: Path) -> None:
    assert acknowledges(Own()) is None and acknowledges(Silent()) is None
    assert acknowledges(OwnFiles(tmp_path)) is None
    assert acknowledges(OwnFilesThatOnlyRead(tmp_path)) is False
    own = Own()
    own.acknowledges = False  # type: ignore[attr-defined]
    assert acknowledges(own) is False


def test_the_refusal_names_each_stream(tmp_path: Path) -> None:
    check_reads_only("copy", {"files": FileSpout(tmp_path)})
    with pytest.raises(Halted, match=r"k: KafkaSpout acknowledges; o: Own does not say.*--accept-acknowledging"):
        check_reads_only("copy", {"files": FileSpout(tmp_path), "k": kafka("billing"), "o": Own()})
