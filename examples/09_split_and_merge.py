"""09: a stream is split, each part is worked on its own way, and the parts come together again.

    python examples/09_split_and_merge.py

One spout gives lines of two formats. Everything that comes of a transaction is
one batch: it is in both tables or in none, and the stream that both branches
come from is computed once.
"""

from collections.abc import Iterator

from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, Max, TridentTopology

batches = [
    ["GET /a 200", "GET /b 404", '{"path": "/a", "status": 200}'],
    ["a line of no known form", "GET /a 500", '{"path": "/c", "status": 200}'],
]


def parse_text(line: str) -> Iterator[tuple[str, int]]:
    """A line of the first format; none of another, which drops the row."""
    words = line.split()
    if len(words) == 3 and words[0] == "GET" and words[2].isdigit():
        yield words[1], int(words[2])


def parse_json(line: str) -> Iterator[tuple[str, int]]:
    import json

    found = json.loads(line)
    yield found["path"], found["status"]


def is_json(line: str) -> bool:
    return line.startswith("{")


def is_text(line: str) -> bool:
    return not is_json(line) and any(True for _ in parse_text(line))


def is_neither(line: str) -> bool:
    return not is_json(line) and not is_text(line)


topology = TridentTopology("split-and-merge")
lines = topology.new_stream("lines", FixedBatchSpout("line string", [[(line,) for line in lines] for lines in batches]))

# Split: a stream may be used as often as one likes.
from_text = lines.each("line", parse_text, "path, status").project("path, status").name("text")
from_json = lines.filter("line", is_json).each("line", parse_json, "path, status").project("path, status").name("json")
lines.filter("line", is_neither).partition_persist(DeltaAppend("rejected"))

# Merge: rows of the same fields.
requests = from_text.merge(from_json)
requests.group_by("path").persistent_aggregate(DeltaMapState("requests"), Count(), "n")
# Several aggregates of the same rows, a row per batch.
(
    requests.chained_agg()
    .aggregate(Count(), "requests")
    .aggregate("status", Max(), "worst")
    .chain_end()
    .partition_persist(DeltaAppend("batches"))
)

if __name__ == "__main__":
    print(topology.explain())
    print()
    query = topology.start()
    query.process_all_available()
    query.snapshot("requests").orderBy("path").show()
    query.snapshot("batches").orderBy("worst").show()
    print("rejected:", query.snapshot("rejected").first().line)
    query.stop()
