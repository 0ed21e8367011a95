"""What streams mean for one batch (docs/semantics.md 4), in plain Python: what tests compare Spark with.

It shares no code with the package. A batch is a list of partitions, a
partition a list of rows, a row a dict. Where the semantics do not say in which
partition a row is, or in which order the rows come, the batch says so
(``placed``, ``ordered``), and only what does not depend on it may be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cmp_to_key
from itertools import product
from typing import Any

Row = dict[str, Any]
Link = tuple[Any, Sequence[str], Sequence[str]]  # (aggregator, inputs, outputs)


class Batch:
    """The rows of a batch at one place of a stream.

    Args:
        fields: their names, in order.
        partitions: the rows of each; all in one where ``placed`` is false.
        placed: which rows are in which partition is known.
        ordered: so is the order of the rows, first partition first.
    """

    def __init__(
        self, fields: Sequence[str], partitions: Sequence[Sequence[Row]], placed: bool = True, ordered: bool = True
    ) -> None:
        self.fields, self.placed, self.ordered = tuple(fields), placed, ordered
        self.partitions = [list(rows) for rows in partitions]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.partitions for row in rows]

    def tuples(self) -> list[tuple]:
        return [tuple(row[name] for name in self.fields) for row in self.rows]

    def _row_by_row(self, fields: Sequence[str], function: Callable[[Row], list[Row]]) -> "Batch":
        made = [[new for row in rows for new in function(row)] for rows in self.partitions]
        return Batch(fields, made, self.placed, self.ordered)

    def _bag(self, fields: Sequence[str], rows: Sequence[Row]) -> "Batch":
        return Batch(fields, [rows], placed=False, ordered=False)

    # --- row by row ----------------------------------------------------------------------

    def each(self, inputs: Sequence[str], function: Callable[..., Any], outputs: Sequence[str]) -> "Batch":
        """A function: what it returns is none, one or many rows, beside the row that it was called for."""

        def extend(row: Row) -> list[Row]:
            values = results_of(function(*[row[name] for name in inputs]), len(outputs))
            return [{**row, **dict(zip(outputs, value))} for value in values]

        return self._row_by_row((*self.fields, *outputs), extend)

    def map(self, function: Callable[..., Any], outputs: Sequence[str]) -> "Batch":
        def replace(row: Row) -> list[Row]:
            value = function(*[row[name] for name in self.fields])
            return [dict(zip(outputs, value if len(outputs) > 1 else (value,)))]

        return self._row_by_row(outputs, replace)

    def flat_map(self, function: Callable[..., Any], outputs: Sequence[str]) -> "Batch":
        def replace(row: Row) -> list[Row]:
            values = results_of(function(*[row[name] for name in self.fields]), len(outputs))
            return [dict(zip(outputs, value)) for value in values]

        return self._row_by_row(outputs, replace)

    def filter(self, inputs: Sequence[str], function: Callable[..., Any]) -> "Batch":
        return self._row_by_row(self.fields, lambda row: [row] if function(*[row[name] for name in inputs]) else [])

    def with_column(self, name: str, inputs: Sequence[str], function: Callable[..., Any]) -> "Batch":
        fields = self.fields if name in self.fields else (*self.fields, name)
        return self._row_by_row(fields, lambda row: [{**row, name: function(*[row[given] for given in inputs])}])

    def project(self, names: Sequence[str]) -> "Batch":
        return self._row_by_row(names, lambda row: [{name: row[name] for name in names}])

    def drop(self, names: Sequence[str]) -> "Batch":
        return self.project([name for name in self.fields if name not in names])

    def rename(self, names: dict[str, str]) -> "Batch":
        new = [names.get(name, name) for name in self.fields]
        return self._row_by_row(new, lambda row: [{names.get(name, name): value for name, value in row.items()}])

    # --- several batches -----------------------------------------------------------------

    def merge(self, *others: "Batch", outputs: Sequence[str] | None = None) -> "Batch":
        """Fields by name; by position where outputs are named."""
        rows = []
        for batch in (self, *others):
            names = self.fields if outputs is None else batch.fields
            rows += [dict(zip(outputs or self.fields, (row[name] for name in names))) for row in batch.rows]
        return self._bag(outputs or self.fields, rows)

    # --- partitions ----------------------------------------------------------------------

    def moved(self) -> "Batch":
        """Somewhere: shuffle, partition_by."""
        return self._bag(self.fields, self.rows)

    def global_(self) -> "Batch":
        return Batch(self.fields, [self.rows], placed=True, ordered=False)

    def broadcast(self, count: int) -> "Batch":
        return Batch(self.fields, [self.rows] * count, placed=True, ordered=False)

    def partition(self, inputs: Sequence[str], function: Callable[..., Any], count: int) -> "Batch":
        partitions: list[list[Row]] = [[] for _ in range(count)]
        for row in self.rows:
            found = function(*[row[name] for name in inputs])
            for target in found if isinstance(found, list) else [found]:
                partitions[target % count].append(row)
        return Batch(self.fields, partitions, placed=True, ordered=False)

    # --- aggregates ----------------------------------------------------------------------

    def aggregate(self, links: Sequence[Link], keys: Sequence[str] = ()) -> "Batch":
        """One aggregate or a chain of them, over the batch or per group."""
        return self._bag([*keys, *outputs_of(links)], aggregated(self.rows, links, keys))

    def partition_aggregate(self, links: Sequence[Link], keys: Sequence[str] = ()) -> "Batch":
        assert self.placed, "the semantics do not say which rows are in which partition"
        made = [aggregated(rows, links, keys) for rows in self.partitions]
        return Batch([*keys, *outputs_of(links)], made, placed=True, ordered=not keys and self.ordered)

    def best(
        self, by: Sequence[str], greatest: bool, whole: bool, comparator: Callable[..., int] | None = None
    ) -> "Batch":
        """The least or greatest row of the batch, or of each partition."""
        assert whole or self.placed, "the semantics do not say which rows are in which partition"
        partitions = [self.rows] if whole else self.partitions
        made = [best_row(rows, by, greatest, comparator) for rows in partitions]
        return Batch(self.fields, made, placed=True, ordered=not whole and self.ordered)

    def first(self, count: int, by: str | None, reverse: bool) -> "Batch":
        rows = self.rows
        if by is not None:
            present = [row for row in rows if row[by] is not None]
            sign = -1 if reverse else 1
            present.sort(key=cmp_to_key(lambda a, b: sign * compare(a[by], b[by])))  # stable: the earlier first
            rows = present + [row for row in rows if row[by] is None]
        return Batch(self.fields, [rows[:count]], placed=True, ordered=True)


def source(fields: Sequence[str], rows: Sequence[tuple], partitions: int) -> Batch:
    """Rows cut into partitions in runs of equal length."""
    cut: list[list[Row]] = [[] for _ in range(partitions)]
    for place, row in enumerate(rows):
        cut[place * partitions // len(rows)].append(dict(zip(fields, row)))
    return Batch(fields, cut)


def join(sides: Sequence[Batch], keys: Sequence[Sequence[str]], outer: Sequence[bool], outputs: Sequence[str]) -> Batch:
    """Every combination of the sides' rows with equal keys; null equals null."""
    grouped = [groups(batch.rows, names) for batch, names in zip(sides, keys)]
    others = [[name for name in batch.fields if name not in names] for batch, names in zip(sides, keys)]
    found: dict[tuple, tuple] = {}
    for side in grouped:
        for same, (key, _) in side.items():
            found.setdefault(same, key)
    rows = []
    for same, key in found.items():
        choices: list[list[tuple]] = []
        for side, names, optional in zip(grouped, others, outer):
            matching = [tuple(row[name] for name in names) for row in side[same][1]] if same in side else []
            if not matching and optional:
                matching = [(None,) * len(names)]
            choices.append(matching)
        for chosen in product(*choices):
            rows.append(dict(zip(outputs, (*key, *(value for values in chosen for value in values)))))
    return Batch(outputs, [rows], placed=False, ordered=False)


def multi_reduce(
    sides: Sequence[Batch],
    keys: Sequence[Sequence[str]],
    inputs: Sequence[Sequence[str]],
    reducer: Any,
    outputs: Sequence[str],
) -> Batch:
    """One reducer over the rows of several batches, per group where there are keys."""
    grouped = [groups(batch.rows, names) for batch, names in zip(sides, keys)]
    found: dict[tuple, tuple] = {} if keys[0] else {(): ()}
    for side in grouped:
        for same, (key, _) in side.items():
            found.setdefault(same, key)
    rows = []
    for same, key in found.items():
        state = reducer.init(None)
        for index, (side, names) in enumerate(zip(grouped, inputs)):
            for row in side[same][1] if same in side else []:
                new = reducer.execute(state, index, *[row[name] for name in names])
                state = state if new is None else new
        for values in results_of(reducer.complete(state), len(outputs)):
            rows.append({**dict(zip(keys[0], key)), **dict(zip(outputs, values))})
    return Batch([*keys[0], *outputs], [rows], placed=False, ordered=False)


# --- values --------------------------------------------------------------------------------


def results_of(value: Any, width: int) -> list[tuple]:
    """What a function gave, as rows of so many values."""
    if value is None:
        return []
    several = isinstance(value, (list, Iterator))
    return [tuple(one) if width > 1 else (one,) for one in (value if several else [value])]


def groups(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple, tuple[tuple, list[Row]]]:
    """What is equal → (the key, its rows). Null is a group, NaN is one, and zeros of both signs are one."""
    found: dict[tuple, tuple[tuple, list[Row]]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        found.setdefault(tuple(map(same, key)), (key, []))[1].append(row)
    return found


def same(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    return value


def compare(a: Any, b: Any) -> int:
    """Spark's order of values that are not null: NaN is greater than any number."""
    if isinstance(a, tuple):
        return next((found for found in map(compare, a, b) if found), 0)
    if isinstance(a, float):
        a, b = (a != a, 0.0 if a != a else a), (b != b, 0.0 if b != b else b)
    return (a > b) - (a < b)


def best_row(
    rows: Sequence[Row], by: Sequence[str], greatest: bool, comparator: Callable[..., int] | None
) -> list[Row]:
    """Rows with a null are skipped; of equal ones the later is kept."""
    decide, best = comparator or compare, None
    for row in rows:
        values = tuple(row[name] for name in by)
        if None in values:
            continue
        key: Any = values[0] if len(by) == 1 else values
        order = 0 if best is None else decide(key, best[0])
        if best is None or (order >= 0 if greatest else order <= 0):
            best = (key, row)
    return [] if best is None else [best[1]]


def outputs_of(links: Sequence[Link]) -> list[str]:
    return [name for _, _, outputs in links for name in outputs]


def aggregated(rows: Sequence[Row], links: Sequence[Link], keys: Sequence[str]) -> list[Row]:
    """A row per group, or per combination of what the links give; without keys also for no row."""
    found = groups(rows, keys).values() if keys else [((), rows)]
    made = []
    for key, members in found:
        given = [one_aggregate(aggregator, members, inputs, len(outputs)) for aggregator, inputs, outputs in links]
        for chosen in product(*given):
            values = [value for part in chosen for value in part]
            made.append(dict(zip([*keys, *outputs_of(links)], [*key, *values])))
    return made


def one_aggregate(aggregator: Any, rows: Sequence[Row], inputs: Sequence[str], width: int) -> list[tuple]:
    """The results over rows: of "count", "sum", "sum of doubles", "min", "max", or of a user's object."""
    values = [tuple(row[name] for name in inputs) for row in rows]
    if isinstance(aggregator, str):
        return [(builtin(aggregator, values),)]
    if hasattr(aggregator, "combine"):
        parts = [aggregator.init(*row) for row in values]
        total = parts[0] if parts else aggregator.zero()
        for part in parts[1:]:
            total = aggregator.combine(total, part)
        return [(total,)]
    if hasattr(aggregator, "reduce"):
        current = aggregator.init()
        for row in values:
            current = aggregator.reduce(current, *row)
        return [(current,)]
    state = aggregator.init(None)
    for row in values:
        new = aggregator.aggregate(state, *row)
        state = state if new is None else new
    return results_of(aggregator.complete(state), width)


def builtin(name: str, values: Sequence[tuple]) -> Any:
    if name == "count":
        return len(values)
    present = [value for (value,) in values if value is not None]
    if name in ("sum", "sum of doubles"):
        return sum(present, 0 if name == "sum" else 0.0)
    ordered = sorted(present, key=cmp_to_key(compare))
    return (ordered[0] if name == "min" else ordered[-1]) if ordered else None


def canonical(rows: Sequence[Sequence[Any]], ordered: bool = False) -> list[str]:
    """Rows as text that is equal where they are equal; sorted unless their order is promised."""
    texts = [repr(_plain(tuple(row))) for row in rows]
    return texts if ordered else sorted(texts)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value)) if isinstance(value, tuple) else list(map(_plain, value))
    return value + 0.0 if isinstance(value, float) else value
