"""07: how many people could have seen a link, asked while a word count runs; and the word count itself, asked too.

    python examples/07_reach.py

A DRPC stream is asked instead of fed: each request is a batch of one row, which
commits nothing. Its answer holds the states as of one transaction. The same
requests come over HTTP (the setting ``http``):

    curl http://127.0.0.1:PORT/drpc/reach/a.example/news
"""

import json
import tempfile
import urllib.request
from collections.abc import Iterator

from trident import Count, DeltaMapState, FixedBatchSpout, MapGet, StaticMap, Sum, TridentTopology, expr

TWEETERS = {("a.example/news",): ["ann", "bob"], ("b.example/song",): ["bob", "cid", "dan"]}
FOLLOWERS = {("ann",): ["eve", "fay", "bob"], ("bob",): ["eve", "gil"], ("cid",): ["ann", "eve", "hal", "ida"]}
SENTENCES = ["the cow jumped over the moon", "the man went to the store", "four score and seven years ago"]


class One:
    """A combiner that is 1 whatever it combines: one for each group."""

    def init(self) -> int:
        return 1

    def combine(self, one: int, other: int) -> int:
        return 1

    def zero(self) -> int:
        return 1


def expand(people: list[str]) -> Iterator[str]:
    yield from people or ()


def split(sentence: str) -> Iterator[str]:
    yield from sentence.split()


topology = TridentTopology("reach")

# Reach: all followers of those who tweeted the link, each counted once.
tweeters = topology.new_static_state(StaticMap(TWEETERS))
followers = topology.new_static_state(StaticMap(FOLLOWERS))
(
    topology.new_drpc_stream("reach", "url string")
    .state_query(tweeters, "url", MapGet(), "tweeters array<string>")
    .each("tweeters", expand, "tweeter")
    .shuffle()
    .state_query(followers, "tweeter", MapGet(), "followers array<string>")
    .each("followers", expand, "follower")
    .group_by("follower")
    .aggregate(One(), "one")
    .aggregate("one", Sum(), "reach")
)

# A word count, and how often some words have been counted so far.
counts = (
    topology.new_stream("sentences", FixedBatchSpout("sentence string", [[(text,)] for text in SENTENCES]))
    .each("sentence", split, "word")
    .group_by("word")
    .persistent_aggregate(DeltaMapState("sentence_words"), Count(), "count")
)
(
    topology.new_drpc_stream("words", "words string")
    .each("words", split, "word")
    .state_query(counts, "word", MapGet(), "count")
    .filter(expr("count is not null"))  # a word that was never counted
    .aggregate("count", Sum(), "sum")
)

if __name__ == "__main__":
    # The embedded ZooKeeper, whose files are in there too, ends some seconds after its folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        query = topology.start(warehouse=folder, http="127.0.0.1:0")
        answer = query.execute("words", "the cow dog")
        print(f"while it counts, as of transaction {answer.as_of['sentences']}: {answer[0]['sum']} times")
        for url in ("a.example/news", "b.example/song", "c.example/unknown"):
            print(f"{url} reaches {query.execute('reach', url)[0].reach}")

        query.process_all_available()
        address = f"http://{query.http_address}/drpc/words/the%20cow%20dog"
        with urllib.request.urlopen(address) as response:
            found = json.load(response)
        print(f"over HTTP, as of transaction {found['as_of']['sentences']}: {found['rows'][0]['sum']} times")
        query.stop()
