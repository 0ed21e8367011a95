"""10: each message is followed through all that is made of it: a text, its lines, their names.

    python examples/10_names.py

First message by message, with a spout and bolts as in Storm. The bolts work at
least once, so the spout must give up a message that always fails. Then as a
stream of batches into a table, exactly once: the message that fails leaves its
batch, is tried again and becomes a dead letter; the others are counted once.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from trident import (
    BasicBolt,
    Count,
    DeltaMapState,
    InProcessQueue,
    InProcessQueueSpout,
    RichBolt,
    TridentTopology,
    TupleTopology,
)

TEXTS = {"msg1": "刘备 关羽 张飞\n曹操 郭嘉 荀彧", "other": "刘备 ??? 关羽"}


def check(name: str) -> str:
    if name == "???":
        raise ValueError("this name cannot be read")
    return name


class Texts(InProcessQueueSpout):
    """A text (msg1) is one message of as many tuples as it has lines (msg2, msg3), settled when all of them are."""

    def __init__(self, queue: InProcessQueue, tries: int) -> None:
        super().__init__(queue, "line string")
        self.tries, self.heard = tries, []

    def next_tuple(self) -> None:
        text = self.queue.take()
        if text is not None:
            self.collector.emit_many(text.value.splitlines(), text.id)

    def ack(self, message_id: str) -> None:
        self.heard.append(f"ack({message_id})")
        super().ack(message_id)

    def fail(self, message_id: str) -> None:
        self.heard.append(f"fail({message_id})")
        if self.queue.deliveries(message_id) < self.tries:
            super().fail(message_id)
        else:
            self.heard.append(f"{message_id} is given up")
            self.queue.acknowledge(message_id)


class SplitNames(RichBolt):
    """Makes names of a line: msg4, 5, 6 of msg2, and msg7, 8, 9 of msg3."""

    fields = "name"

    def execute(self, tuple) -> None:
        for name in tuple["line"].split():
            self.collector.emit(name, anchors=tuple)  # if the name fails, the whole text comes again
        self.collector.ack(tuple)


class WriteNames(BasicBolt):
    """A basic bolt: its input is acknowledged when this returns, and fails when it raises."""

    def __init__(self, path: str) -> None:
        self.path = path

    def execute(self, tuple, collector) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            print(check(tuple["name"]), file=file)


def split(line: str) -> Iterator[str]:
    yield from line.split()


def filled(tries: int) -> Texts:
    queue = InProcessQueue()
    for message_id, text in TEXTS.items():
        queue.put(text, message_id)
    return Texts(queue, tries)


def tuples(folder: str) -> None:
    spout, written = filled(tries=2), Path(folder, "names.txt")
    topology = TupleTopology("tuples")
    topology.set_spout("texts", spout)
    topology.set_bolt("split", SplitNames()).shuffle_grouping("texts")
    topology.set_bolt("write", WriteNames(str(written)), parallelism=2).fields_grouping("split", "name")
    print(topology.explain())
    query = topology.start(warehouse=folder)
    query.process_all_available()
    query.stop()
    print("the spout heard:", ", ".join(spout.heard))
    names = written.read_text(encoding="utf-8").split()
    print("why:", query.last_errors[0].message_id, "failed in bolt", query.last_errors[0].bolt)
    print("刘备 was written", names.count("刘备"), "times, 曹操", names.count("曹操"), "time: at least once")


def batches(folder: str) -> None:
    spout = filled(tries=100)  # giving up is the topology's business: max_replays
    topology = TridentTopology("names")
    (
        topology.new_stream("texts", spout)
        .each("line", split, "word")
        .each("word", check, "name")
        .group_by("name")
        .persistent_aggregate(DeltaMapState("name_counts"), Count(), "count")
    )
    query = topology.start(warehouse=folder, max_replays=1, replay_backoff_secs=0.1)
    query.process_all_available()
    query.snapshot("name_counts").orderBy("name").show()
    for letter in query.spark.read.format("delta").load(f"{folder}/names__texts__dead_letters").collect():
        print(f"dead letter: {letter.message}, {letter.attempts} tries, {letter.operation}: {letter.error}")
    query.stop()
    print("the spout heard:", ", ".join(sorted(spout.heard)))
    print("so 刘备 counts 1: exactly once, and nothing of the message that failed")


if __name__ == "__main__":
    # The embedded ZooKeeper, whose files are in there too, ends some seconds after its folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        print("--- message by message, as in Storm")
        tuples(folder)
        print("\n--- as batches, exactly once")
        batches(folder)
