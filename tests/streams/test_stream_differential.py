"""Random streams: what Spark makes of them is what the interpreter of the semantics says (docs/semantics.md 4).

Chains and DAGs of operations over one to three sources, with nulls, NaN,
duplicates, empty batches and several partitions; native and Python forms of
the same operation. Drawn from a seed that is printed and can be given again
with TRIDENT_SEED; TRIDENT_RANDOM sets how many are drawn. Where a stream is
wrong, the first stream above it that is wrong is shown.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from tests.streams import stream_interpreter as meaning
from tests.streams.stream_helpers import Rows, RowsSpout, Sides
from tests.streams.stream_interpreter import Batch
from trident import Count, FirstN, GroupedStream, JoinType, Max, Min, Sum, TridentTopology, expr
from trident.streams.stream import Stream
from trident.testing import run_batch

STREAMS = int(os.environ.get("TRIDENT_RANDOM") or 3)  # make random: 200
MOST_ROWS = 40
NAN = float("nan")
VALUES = {
    "long": [None, 0, 1, 2, 3, -1],
    "string": [None, "", "a", "b", "ab", "ä"],
    "double": [None, NAN, 0.0, -0.0, 0.5, 1.5, -2.0],
}


# --- functions of a user -------------------------------------------------------------------


def twice(value: Any) -> Iterator[str]:
    if value is not None:
        yield "x"
        yield str(value)


def next_one(value: int | None) -> int | None:
    return None if value is None else value + 1


def name_and_size(value: Any) -> tuple[str, int]:
    return type(value).__name__, 0 if value is None else len(str(value))


def is_some(value: Any) -> bool:
    return value is not None


def is_small(value: Any) -> bool:
    return len(str(value)) < 3


def nulls(*values: Any) -> int:
    return sum(value is None for value in values)


def parts(*values: Any) -> Iterator[tuple[int, str]]:
    for place, value in enumerate(values):
        if value is not None:
            yield place, str(value)


def target(value: Any) -> int:
    return len(str(value))


def targets(value: Any) -> list[int]:
    return [0] if value is None else [len(str(value)), 1]


class Longest:
    """A combiner whose value may be null."""

    def init(self, value: Any) -> str | None:
        return None if value is None else str(value)

    def combine(self, a: str | None, b: str | None) -> str | None:
        return max((one for one in (a, b) if one is not None), key=lambda text: (len(text), text), default=None)

    def zero(self) -> str | None:
        return None


class Texts:
    """A reducer that does not depend on the order of rows."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, value: Any) -> str:
        return ",".join(sorted(filter(None, [*current.split(","), f"<{value}>"])))


class Distinct:
    """An aggregator that gives a row per value, and none for no row."""

    def init(self, batch_id: Any) -> dict:
        return {}

    def aggregate(self, state: dict, value: Any) -> None:
        state[str(value)] = state.get(str(value), 0) + 1

    def complete(self, state: dict) -> Iterator[tuple[str, int]]:
        yield from sorted(state.items())


class Size:
    """An aggregator that gives one value, and whose state is replaced."""

    def init(self, batch_id: Any) -> int:
        return 100

    def aggregate(self, state: int, *values: Any) -> int:
        return state + 1

    def complete(self, state: int) -> int:
        return state


NATIVE = {"count": Count, "sum": Sum, "min": Min, "max": Max}
USERS = {
    "Rows": (Rows, ("long",)),
    "Longest": (Longest, ("string",)),
    "Texts": (Texts, ("string",)),
    "Distinct": (Distinct, ("string", "long")),
    "Size": (Size, ("long",)),
}


# --- both sides of a stream ------------------------------------------------------------------


class Both:
    """A stream and what it means, with the kinds of its fields."""

    def __init__(self, stream: Stream, batch: Batch, kinds: dict[str, str], text: str) -> None:
        assert stream.fields == batch.fields == tuple(kinds), (text, stream.fields, batch.fields, kinds)
        self.stream, self.batch, self.kinds, self.text = stream, batch, kinds, text

    def then(self, text: str, stream: Stream, batch: Batch, kinds: dict[str, str]) -> "Both":
        return Both(stream, batch, kinds, f"{self.text}.{text}")


class World:
    """Draws streams one from another.

    Attributes:
        streams: all that there are; the last one is asked.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, 0
        self.topology = TridentTopology("random")
        self.partitions = self.pick([1, 2, 3])
        self.rows: dict[str, list[tuple]] = {}
        most = self.pick([0, 3, 8, 8, 8])
        self.streams = [self._source(number, most) for number in range(rng.randint(1, 3))]
        if not any(self.rows.values()) and self.maybe():
            self.partitions = 0
            for both in self.streams:
                both.batch = Batch(both.batch.fields, [[]], placed=False, ordered=True)
        for _ in range(rng.randint(2, 6)):
            self._step()

    def _source(self, number: int, most: int) -> Both:
        kinds = {self.name(): self.pick(sorted(VALUES)) for _ in range(self.rng.randint(1, 3))}
        rows = [tuple(self.pick(VALUES[kind]) for kind in kinds.values()) for _ in range(self.rng.randint(0, most))]
        tx_id = f"s{number}"
        self.rows[tx_id] = rows
        spout = RowsSpout(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
        batch = meaning.source(list(kinds), rows, self.partitions)
        return Both(self.topology.new_stream(tx_id, spout), batch, kinds, tx_id)

    def pick(self, choices: Any) -> Any:
        return self.rng.choice(list(choices))

    def maybe(self) -> bool:
        return self.rng.random() < 0.5

    def name(self) -> str:
        self.names += 1
        return f"f{self.names}"

    def some(self, names: Any, most: int = 2) -> list[str]:
        return self.rng.sample(list(names), self.rng.randint(1, min(most, len(names))))

    def _step(self) -> None:
        both = self.streams[-1] if self.rng.randrange(3) else self.pick(self.streams)
        while True:
            made = self.pick(STEPS)(self, both)
            if made is not None and len(made.batch.rows) <= MOST_ROWS:
                self.streams.append(made)
                return


Step = Callable[[World, Both], "Both | None"]
STEPS: list[Step] = []


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


# --- row by row ------------------------------------------------------------------------------


@step
def each(world: World, both: Both) -> Both:
    function, kinds = world.pick([(twice, ["string"]), (name_and_size, ["string", "long"])])
    given, outputs = world.pick(both.kinds), [world.name() for _ in kinds]
    return both.then(
        f"each({given!r}, {function.__name__}, {outputs})",
        both.stream.each(given, function, outputs),
        both.batch.each([given], function, outputs),
        {**both.kinds, **dict(zip(outputs, kinds))},
    )


@step
def incremented(world: World, both: Both) -> Both | None:
    """In Python, where None drops the row, or as an expression, where it does not."""
    longs = [name for name, kind in both.kinds.items() if kind == "long"]
    if not longs:
        return None
    given, output = world.pick(longs), world.name()
    kinds = {**both.kinds, output: "long"}
    if world.maybe():
        return both.then(
            f"each({given!r}, next_one, {output!r})",
            both.stream.each(given, next_one, output),
            both.batch.each([given], next_one, [output]),
            kinds,
        )
    return both.then(
        f"each(expr('{given} + 1'), {output!r})",
        both.stream.each(expr(f"{given} + 1"), output),
        both.batch.with_column(output, [given], next_one),
        kinds,
    )


@step
def filtered(world: World, both: Both) -> Both:
    given = world.pick(both.kinds)
    if world.maybe():
        function = world.pick([is_some, is_small])
        stream, text = both.stream.filter(given, function), function.__name__
    else:
        function = is_some
        stream, text = both.stream.where(expr(f"{given} is not null")), "native"
    return both.then(f"filter({given!r}, {text})", stream, both.batch.filter([given], function), both.kinds)


@step
def replaced(world: World, both: Both) -> Both:
    if world.maybe():
        output = world.name()
        if world.maybe():
            stream = both.stream.map(nulls, output)
        else:
            text = " + ".join(f"cast({name} is null as long)" for name in both.kinds)
            stream = both.stream.map(expr(text), output)
        return both.then(f"map(nulls, {output!r})", stream, both.batch.map(nulls, [output]), {output: "long"})
    outputs = [world.name(), world.name()]
    return both.then(
        f"flat_map(parts, {outputs})",
        both.stream.flat_map(parts, outputs),
        both.batch.flat_map(parts, outputs),
        dict(zip(outputs, ("long", "string"))),
    )


@step
def reshaped(world: World, both: Both) -> Both:
    names = world.some(both.kinds, 3)
    how = world.pick(["project", "select", "drop", "rename", "with_column"])
    if how in ("project", "select"):
        made = getattr(both.stream, how)(*names)
        return both.then(f"{how}({names})", made, both.batch.project(names), {name: both.kinds[name] for name in names})
    if how == "drop" and len(names) < len(both.kinds):
        kinds = {name: kind for name, kind in both.kinds.items() if name not in names}
        return both.then(f"drop({names})", both.stream.drop(names), both.batch.drop(names), kinds)
    if how == "rename":
        new = {name: world.name() for name in names}
        kinds = {new.get(name, name): kind for name, kind in both.kinds.items()}
        return both.then(f"rename({new})", both.stream.rename(new), both.batch.rename(new), kinds)
    given, into = world.pick(both.kinds), world.pick([*both.kinds, world.name()])
    stream = both.stream.with_column(into, expr(f"length(cast({given} as string)) is null"))
    stream = stream.with_column(into, expr(f"if({into}, 1L, 0L)"))
    batch = both.batch.with_column(into, [given], lambda value: int(value is None))
    return both.then(f"with_column({into!r}, {given} is null)", stream, batch, {**both.kinds, into: "long"})


# --- several streams -------------------------------------------------------------------------


@step
def merged(world: World, both: Both) -> Both:
    alike = [one for one in world.streams if one.kinds == both.kinds]
    other = world.pick(world.streams)
    common = [name for name, kind in both.kinds.items() if kind in other.kinds.values()]
    if common and world.maybe():
        mine = world.some(common)
        kinds = [both.kinds[name] for name in mine]
        theirs = [world.pick([name for name, kind in other.kinds.items() if kind == wanted]) for wanted in kinds]
        if len(set(theirs)) == len(theirs):
            outputs = [world.name() for _ in mine]
            return both.then(
                f"project({mine}).merge({other.text}.project({theirs}), outputs={outputs})",
                both.stream.project(mine).merge(other.stream.project(theirs), outputs=outputs),
                both.batch.project(mine).merge(other.batch.project(theirs), outputs=outputs),
                dict(zip(outputs, kinds)),
            )
    others = [world.pick(alike) for _ in range(world.rng.randint(1, 2))]
    return both.then(
        f"merge({', '.join(one.text for one in others)})",
        both.stream.merge(*[one.stream for one in others]),
        both.batch.merge(*[one.batch for one in others]),
        both.kinds,
    )


@step
def joined(world: World, both: Both) -> Both | None:
    sides = [both, *(world.pick(world.streams) for _ in range(world.pick([1, 1, 2])))]
    compared = [world.some(both.kinds, 2)]
    for side in sides[1:]:
        names = []
        for key in compared[0]:
            fitting = [name for name, kind in side.kinds.items() if kind == both.kinds[key] and name not in names]
            if not fitting:
                return None
            names.append(world.pick(fitting))
        compared.append(names)
    outer = [world.maybe() for _ in sides]
    kinds = [both.kinds[name] for name in compared[0]]
    kinds += [kind for side, keys in zip(sides, compared) for name, kind in side.kinds.items() if name not in keys]
    outputs = [world.name() for _ in kinds]
    types = JoinType.mixed(*[JoinType.OUTER if one else JoinType.INNER for one in outer])
    batch = meaning.join([side.batch for side in sides], compared, outer, outputs)
    if len(batch.rows) > MOST_ROWS:
        return None
    stream = world.topology.join([side.stream for side in sides], keys=compared, outputs=outputs, type=types)
    text = f"join({', '.join(side.text for side in sides)}, keys={compared}, outputs={outputs}, outer={outer})"
    return Both(stream, batch, dict(zip(outputs, kinds)), text)


@step
def multi_reduced(world: World, both: Both) -> Both | None:
    sides = [both, world.pick(world.streams)]
    keys: list[list[str]] = [[], []]
    if world.maybe():
        key = world.pick(both.kinds)
        fitting = [name for name, kind in sides[1].kinds.items() if kind == both.kinds[key]]
        if not fitting:
            return None
        keys = [[key], [world.pick(fitting)]]
    inputs, output = [world.some(side.kinds) for side in sides], world.name()
    streams: list[Any] = [side.stream for side in sides]
    if keys[0]:
        streams = [stream.group_by(*names) for stream, names in zip(streams, keys)]
    return Both(
        world.topology.multi_reduce(streams, inputs=inputs, reducer=Sides(), outputs=output),
        meaning.multi_reduce([side.batch for side in sides], keys, inputs, Sides(), [output]),
        {**{name: both.kinds[name] for name in keys[0]}, output: "string"},
        f"multi_reduce({', '.join(side.text for side in sides)}, keys={keys}, inputs={inputs}, output={output!r})",
    )


# --- aggregates ------------------------------------------------------------------------------


def link(world: World, both: Both) -> tuple[Any, meaning.Link, dict[str, str], str]:
    """An aggregate: the aggregator, what it means, the kinds of its outputs, its text."""
    name = world.pick([*NATIVE, *USERS])
    fitting = [one for one, kind in both.kinds.items() if name != "sum" or kind != "string"]
    if not fitting:
        name, fitting = "count", list(both.kinds)
    given = world.pick(fitting)
    if name in USERS:
        made, types = USERS[name]
        outputs = [world.name() for _ in types]
        return made(), (made(), [given], outputs), dict(zip(outputs, types)), f"{name}({given} -> {outputs})"
    output = world.name()
    kind = "long" if name == "count" else both.kinds[given]
    says = "sum of doubles" if (name, kind) == ("sum", "double") else name
    return NATIVE[name](), (says, [given], [output]), {output: kind}, f"{name}({given} -> {output})"


@step
def aggregated(world: World, both: Both) -> Both:
    """Over the batch, per group or per partition; one aggregate or a chain of them."""
    keys = world.some(both.kinds) if world.maybe() else []
    links = [link(world, both) for _ in range(world.pick([1, 1, 2, 3]))]
    method = "aggregate"
    if both.batch.placed and world.maybe():
        method = "partition_aggregate"
    start: Any = both.stream.group_by(*keys) if keys else both.stream
    if len(links) == 1 and world.maybe():
        aggregator, (_, inputs, outputs), _, _ = links[0]
        stream = getattr(start, method)(inputs, aggregator, outputs)
        stream = stream.to_stream() if isinstance(stream, GroupedStream) else stream
    else:
        chain = start.chained_agg()
        for aggregator, (_, inputs, outputs), _, _ in links:
            chain = getattr(chain, method)(inputs, aggregator, outputs)
        stream = chain.chain_end()
    kinds = {name: both.kinds[name] for name in keys}
    for _, _, made, _ in links:
        kinds.update(made)
    batch = getattr(both.batch, method)([one for _, one, _, _ in links], keys)
    text = f"{'group_by(' + ', '.join(keys) + ').' if keys else ''}{method}({', '.join(text for *_, text in links)})"
    return both.then(text, stream, batch, kinds)


@step
def best(world: World, both: Both) -> Both:
    """Of equal rows the later one is kept: where the order is not known, only what is compared is looked at."""
    by, greatest = world.pick(both.kinds), world.maybe()
    whole = not both.batch.placed or world.maybe()
    scope, name = "batch" if whole else "partition", f"{'max' if greatest else 'min'}"
    if world.maybe():
        stream = getattr(both.stream, name)(scope=scope)
        made = both.batch.best(both.batch.fields, greatest, whole)
        return both.then(f"{name}(scope={scope!r})", stream, made, both.kinds)
    stream, made = getattr(both.stream, f"{name}_by")(by, scope=scope), both.batch.best([by], greatest, whole)
    if both.batch.ordered:
        return both.then(f"{name}_by({by!r}, scope={scope!r})", stream, made, both.kinds)
    return both.then(
        f"{name}_by({by!r}, scope={scope!r}).project({by!r})",
        stream.project(by),
        made.project([by]),
        {by: both.kinds[by]},
    )


@step
def first(world: World, both: Both) -> Both:
    count, by, reverse = world.pick([1, 2, 5]), world.pick(both.kinds), world.maybe()
    if both.batch.ordered:
        chosen = world.pick([None, by])
        made = both.batch.first(count, chosen, reverse and chosen is not None)
        stream = both.stream.apply_assembly(FirstN(count, chosen, reverse and chosen is not None))
        return both.then(f"first_n({count}, {chosen!r}, {reverse})", stream, made, both.kinds)
    made = both.batch.first(count, by, reverse).project([by])
    stream = both.stream.first_n(count, by, reverse).project(by)
    return both.then(f"first_n({count}, {by!r}, {reverse}).project({by!r})", stream, made, {by: both.kinds[by]})


# --- partitions ------------------------------------------------------------------------------


@step
def moved(world: World, both: Both) -> Both:
    how = world.pick(["shuffle", "partition_by", "stays", "global_", "broadcast", "partition"])
    count, stream, batch, names = world.pick([1, 2, 3]), both.stream, both.batch, world.some(both.kinds)
    if how == "stays":
        made = world.pick([stream.local_or_shuffle, stream.identity_partition])()
        return both.then("local_or_shuffle()", made.name("here"), batch, both.kinds)
    if how == "global_":
        return both.then("global_()", stream.global_(), batch.global_(), both.kinds)
    if how == "broadcast":
        made = stream.broadcast().parallelism_hint(count)
        return both.then(f"broadcast().parallelism_hint({count})", made, batch.broadcast(count), both.kinds)
    if how == "partition":
        function = world.pick([target, targets])
        made = stream.partition(names[0], function).parallelism_hint(count)
        text = f"partition({names[0]!r}, {function.__name__}).parallelism_hint({count})"
        return both.then(text, made, batch.partition(names[:1], function, count), both.kinds)
    made = stream.shuffle() if how == "shuffle" else stream.partition_by(*names)
    if world.maybe():
        made, how = made.parallelism_hint(count), f"{how}.parallelism_hint({count})"
    return both.then(f"{how}({names})", made, batch.moved(), both.kinds)


@step
def counted_in_partitions(world: World, both: Both) -> Both:
    """Where rows are is not known, but in how many partitions, and what they are together."""
    how, count, names = world.pick(["shuffle", "partition_by"]), world.pick([1, 2, 4]), world.some(both.kinds)
    placed = (both.stream.shuffle() if how == "shuffle" else both.stream.partition_by(*names)).parallelism_hint(count)
    outputs = [world.name(), world.name()]
    per_partition = placed.partition_aggregate(world.pick([Count(), Rows()]), outputs[0])
    made = per_partition.chained_agg().aggregate(outputs[0], Sum(), outputs[0]).aggregate(Count(), outputs[1])
    row = dict(zip(outputs, (len(both.batch.rows), count)))
    return both.then(
        f"{how}({names}).parallelism_hint({count}).partition_aggregate(Count), sum and count",
        made.chain_end(),
        Batch(outputs, [[row]], placed=True, ordered=True),
        dict.fromkeys(outputs, "long"),
    )


@step
def grouped_by_partition(world: World, both: Both) -> Both:
    """Equal keys are in one partition, so a result per group of each partition is one per group."""
    names = world.some(both.kinds)
    made, one, kinds, text = link(world, both)
    aggregator, inputs, outputs = one
    stream = both.stream.partition_by(*names).parallelism_hint(world.pick([1, 2, 3]))
    return both.then(
        f"partition_by({names}).group_by({names}).partition_aggregate({text})",
        stream.group_by(*names).partition_aggregate(inputs, made, outputs).to_stream(),
        both.batch.aggregate([one], names),
        {**{name: both.kinds[name] for name in names}, **kinds},
    )


@step
def kept_grouping(world: World, both: Both) -> Both:
    keys, given, output, total = world.some(both.kinds), world.pick(both.kinds), world.name(), world.name()
    grouped = both.stream.group_by(*keys).each(given, twice, output).filter(given, is_small)
    batch = both.batch.each([given], twice, [output]).filter([given], is_small)
    return both.then(
        f"group_by({keys}).each({given!r}, twice, {output!r}).filter({given!r}, is_small).aggregate(Texts)",
        grouped.aggregate(output, Texts(), total),
        batch.aggregate([(Texts(), [output], [total])], keys),
        {**{name: both.kinds[name] for name in keys}, total: "string"},
    )


# --- the test --------------------------------------------------------------------------------


def test_random_streams(spark: SparkSession, rng: random.Random) -> None:
    seeds = [rng.getrandbits(64) for _ in range(STREAMS)]
    for number, seed in enumerate(seeds, 1):
        world = World(random.Random(seed))
        print(f"stream {number}: {world.streams[-1].text}\n  rows {world.rows} in {world.partitions} partitions")
        if difference(spark, world, world.streams[-1]):
            wrong = [found for both in world.streams if (found := difference(spark, world, both))]
            raise AssertionError(f"seed {seed}: {wrong[0] if wrong else 'right when repeated'}")


def difference(spark: SparkSession, world: World, asked: Both) -> str:
    """What Spark and the interpreter say of a stream, where that is not the same."""
    sources = {node.tx_id for node in above(asked.stream._node) if hasattr(node, "tx_id")}
    rows = {tx_id: given for tx_id, given in world.rows.items() if tx_id in sources}
    ordered = asked.batch.ordered
    expected = meaning.canonical(asked.batch.tuples(), ordered)
    try:
        found = meaning.canonical(run_batch(asked.stream, rows, spark=spark, partitions=world.partitions), ordered)
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    if found == expected:
        return ""
    return f"{asked.text}\n  rows {rows} in {world.partitions} partitions\n  expected {expected}\n  found    {found}"


def above(node: Any) -> Iterator[Any]:
    yield node
    for parent in node.parents:
        yield from above(parent)
