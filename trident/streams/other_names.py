"""Names of Storm, PySpark and Spark's Java API: an AttributeError tells the name to write here.

``stream.groupBy("word")`` fails in every case; here it fails with "did you mean group_by".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trident.udf.types import did_you_mean


class OtherNames:
    """A base that answers for names that its class does not have."""

    _OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    """Names of other interfaces that are no spelling of one of ours → what to write."""

    if not TYPE_CHECKING:  # a type checker shall not take every name for one of ours

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if not name.startswith("_") and hasattr(kind, name):
                return object.__getattribute__(self, name)  # a property raised an AttributeError of its own: that one
            text = f"{kind.__name__!r} object has no attribute {name!r}"
            hint = None if name.startswith("_") else self._hint(name)
            raise AttributeError(f"{text}; {hint}" if hint else text, name=name, obj=self)

    @classmethod
    def _hint(cls, name: str) -> str | None:
        snake = snake_case(name)
        if not snake.startswith("_") and hasattr(cls, snake):
            return f"did you mean {snake}?"
        if name in cls._OTHER_NAMES or snake in cls._OTHER_NAMES:
            return cls._OTHER_NAMES.get(name) or cls._OTHER_NAMES[snake]
        found = did_you_mean(name, [one for one in dir(cls) if not one.startswith("_")])
        # Several words in quotes read like one: the name alone.
        return None if found is None else found.replace("'", "")


def snake_case(name: str) -> str:
    """``newDRPCStream`` → ``new_drpc_stream``."""
    apart = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", apart).lower()


_NO_ACTION = "a stream is a description: start the topology, and read a state with query.snapshot(name)"
_NO_ORDER = "rows have no order between operations; see first_n, Upsert(order_by=…), or order the snapshot"
_ONE_ROW = "write partition_persist(DeltaMapState(name), None, Upsert(keys)): one row per key over all batches"
STREAM_NAMES = {
    "alias": "write name('…'); fields are renamed with rename({'old': 'new'})",
    "with_column_renamed": "write rename({'old': 'new'})",
    "with_columns_renamed": "write rename({'old': 'new'})",
    "drop_duplicates_within_watermark": "write drop_duplicates(keys, within='1 day')",
    "distinct": _ONE_ROW,
    "count": "write aggregate(Count(), 'count') for a batch, or persistent_aggregate(state, Count(), 'count') over all",
    "sum": "write aggregate('n', Sum(), 'total'), or over all batches persistent_aggregate(state, 'n', Sum(), 'total')",
    "order_by": _NO_ORDER,
    "sort": _NO_ORDER,
    "limit": "write first_n(n): of each batch",
    "take": _NO_ACTION,
    "first": _NO_ACTION,
    "head": _NO_ACTION,
    "show": _NO_ACTION,
    "collect": _NO_ACTION,
    "write": "write partition_persist(DeltaAppend(name))",
    "write_stream": "write partition_persist(DeltaAppend(name)), then topology.start()",
    "foreach": "write peek(function), for a side effect; or partition_persist with a StateUpdater of your own",
    "foreach_batch": "write partition_persist(state, …): a state takes the place of foreachBatch",
    "union_all": "write merge(other)",
    "union_by_name": "write merge(other)",
    "cross_join": "write join with a constant key",
    "repartition": "write partition_by(fields), or shuffle(), then parallelism_hint(n)",
    "coalesce": "write parallelism_hint(n)",
    "explode": "write each(expr('explode(items)'), 'item') or flat_map",
    "window": "write tumbling_window(length), sliding_window(length, slide) or session_window(gap)",
    "global": "write global_()",
    "explain": "write topology.explain()",
    "start": "write topology.start()",
    "print_schema": "read .schema or .fields",
    "columns": "read .fields",
    "dtypes": "read .schema",
    "get_output_fields": "read .fields",
    "get_name": "see topology.explain()",
}
_AGG = "write agg(F.{0}('n').alias('{0}'))"
GROUPED_NAMES = {
    **{name: _AGG.format(name) for name in ("sum", "avg", "mean", "min", "max")},
    "late_rows": "call it on what was grouped: on the windows, or the stream of a join, process or drop_duplicates",
    "pivot": "there is none; write filter and aggregate for each value",
    "apply_in_pandas": "write aggregate with an Aggregator",
    "apply": "write aggregate with an Aggregator",
    "map_groups_with_state": "write persistent_aggregate with an Aggregator that has resume",
    "transform_with_state": "write persistent_aggregate with an Aggregator that has resume",
    "get_group_fields": "read .keys",
    "get_output_fields": "read .fields",
}
STATE_NAMES = {
    "snapshot": "write query.snapshot(state.name)",
    "state_query": "write stream.state_query(state, …)",
    "new_values": "write new_values_stream()",
}
TOPOLOGY_NAMES = {
    "build": "nothing is built by hand: write start() or run()",
    "submit": "write start() or run(), or `trident run FILE`",
    "new_drpc": "write new_drpc_stream(function)",
    "read_stream": "write new_stream(tx_id, spout)",
    "stop": "stop the query that start() gave",
}
QUERY_NAMES = {
    "id": "read .run_id",
    "kill": "write stop()",
    "activate": "write resume()",
    "deactivate": "write pause()",
}
TUPLE_TOPOLOGY_NAMES = {
    "create_topology": "nothing is built by hand: write start()",
    "build": "nothing is built by hand: write start()",
    "set_worker_hook": "there are none",
    "set_state_spout": "there is none",
}
BOLT_NAMES = {
    "direct_grouping": "write custom_grouping(source, function)",
    "local_or_shuffle_grouping": "write shuffle_grouping(source): every tuple goes through Spark, so none is local",
    "partial_key_grouping": "write custom_grouping(source, function)",
}
