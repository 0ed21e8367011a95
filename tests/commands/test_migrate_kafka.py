"""``trident migrate`` from Spark's source for Kafka: the first transaction begins at exactly its offsets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.commands.test_migrate import made
from tests.servers.kafka_fixtures import KafkaBroker
from tests.topology_helpers import Starter
from trident import Count, DeltaMapState, KafkaSpout, TridentTopology
from trident.commands.migrate import InDoubt, migrate
from trident.config import TridentConfig
from trident.coordinators.errors import SourceError
from trident.spouts.checkpoint import StreamCheckpoint
from trident.spouts.contracts import SpoutContext
from trident.spouts.kafka.ranges import Batch
from trident.states.core.place import Place


def position(kafka: KafkaBroker, folder: Path, value: Any, topic: str) -> Batch:
    """The position of a KafkaSpout behind these offsets of a checkpoint."""
    (source,) = StreamCheckpoint(Place(made(folder, 0, 0, [value]))).ends(0)
    spout = KafkaSpout(kafka.address, topic)
    assert spout.reads_source(source)
    return Batch.read(spout.position_after(source, SpoutContext(None, "t", "s", folder, "i")))


def test_the_offsets_of_each_partition_are_where_the_stream_goes_on(kafka: KafkaBroker, topic: str, tmp_path) -> None:
    kafka.create(topic, 12)
    for partition in (0, 2, 11):
        kafka.put(topic, [b"x"] * 5, partition)
    offsets = {str(number): {0: 5, 2: 3, 11: 1}.get(number, 0) for number in range(12)}
    found = position(kafka, tmp_path / "all", {topic: offsets}, topic)
    (ranges,) = found.topics
    assert ranges.id == kafka.topic_id(topic) and list(ranges.begin) == list(ranges.end)
    assert list(ranges.end) == [5, 0, 3, *[0] * 8, 1]
    fewer = {number: offset for number, offset in offsets.items() if int(number) < 11}
    (ranges,) = position(kafka, tmp_path / "grown", {topic: fewer}, topic).topics
    assert len(ranges.end) == 11, "a partition that Spark did not know is a new one, read from its first message on"


def test_offsets_at_which_no_stream_can_go_on_are_refused(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, [b"x"] * 5, 0)
    kafka.delete_before(topic, 0, 3)
    for name, offsets, said in (
        ("expired", {"0": 2, "1": 0}, "cannot continue at offset 2 of .*found: offsets 3 … 5"),
        ("ahead", {"0": 6, "1": 0}, "cannot continue at offset 6"),
        ("some", {"1": 0}, "an offset of each partition from 0 on"),
        ("negative", {"0": -1, "1": 0}, "an offset of each partition"),
        ("more", {"0": 5, "1": 0, "2": 0}, "the 3 partitions that the checkpoint has read"),
    ):
        with pytest.raises(SourceError, match=said):
            position(kafka, tmp_path / name, {topic: offsets}, topic)
    with pytest.raises(SourceError, match="no such topic"):
        position(kafka, tmp_path / "gone", {f"{topic}x": {"0": 0}}, f"{topic}x")


@pytest.mark.long
def test_a_topology_reads_what_the_job_had_not_read(
    start: Starter, spark: SparkSession, kafka: KafkaBroker, topic: str, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    """Its first batch was in doubt, and began at the offsets that Spark wrote down when the query began."""
    kafka.create(topic, 2)
    kafka.put(topic, [b"before"] * 3 + [b"a", b"b"], 0)
    kafka.put(topic, [b"a", b"late"], 1)
    checkpoint = made(tmp_path / "checkpoint", 0, -1, [{topic: {"0": 5, "1": 1}}])
    first = b"\0v1\n" + json.dumps({topic: {"0": 3, "1": 0}}).encode()
    (checkpoint / "sources" / "0" / "0").write_bytes(first)
    rows = spark.createDataFrame([("a", 10), ("before", 3)], "word string, count long")
    rows.write.format("delta").save(str(tmp_path / "warehouse" / "counts"))

    def words() -> TridentTopology:
        topology = TridentTopology("words")
        read = topology.new_stream("s", KafkaSpout(kafka.address, topic, value="text", columns=("value",)))
        grouped = read.rename({"value": "word"}).group_by("word")
        grouped.persistent_aggregate(DeltaMapState("counts", adopt=True), Count(), "count")
        return topology

    config = TridentConfig(warehouse=str(tmp_path / "warehouse"), zookeeper=zk_server, zookeeper_root=zk_root)
    said = migrate(str(checkpoint), words(), config, InDoubt(again=True))
    assert "at the start of batch 0" in said and f"{topic} {{'0': 3, '1': 0}}" in said
    query = start.run(words())
    found = {row["word"]: row["count"] for row in query.snapshot("counts").collect()}
    assert found == Counter({"before": 3, "a": 12, "b": 1, "late": 1})
