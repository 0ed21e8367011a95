"""DataFrame calls that are prepared once per session, and repeated for every batch.

A small batch takes about 100 ms in all, and a call to the JVM up to one, so
everything that does not change is made once per session: Columns, UDFs, Java
sequences. For that this module uses PySpark's classic inner objects
(``_jdf``, ``_jc``); it is the only one of the planner's that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions as F
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from trident.coordinators import faults
from trident.states.core.binding import StateBinding
from trident.states.core.names import backquoted
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.chain import Chain, SentChain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEEP = faults.register("batch.keep", "the Spark job that keeps the rows of a batch which are used more than once")
_LARGE_BYTES = 1 << 17


@dataclass(frozen=True)
class Batch:
    """The batch that transforms build.

    Attributes:
        info: for user code.
        stored: (state, frame of its keys or None) → its keys and values as of the
            transaction before; for late segments.
        once: computes a frame now, so that it can be used twice; and tells how many rows it has.
        rows: how many rows come into its late segments; None: few.
    """

    info: BatchInfo
    stored: Callable[[StateBinding, "DataFrame | None"], "DataFrame"] | None = None
    once: Callable[["DataFrame"], tuple["DataFrame", int]] | None = None
    rows: int | None = None


# A transform of a classic DataFrame: the session was checked to be classic when the topology started.
Transform = Callable[["DataFrame", Batch], "DataFrame"]
# The same of several frames, one per anchor of the segment.
Join = Callable[[Sequence["DataFrame"], Batch], "DataFrame"]


class SessionFrames:
    """The calls of one session; Columns, and the Java sequences of them, belong to its JVM."""

    def __init__(self, session: Any) -> None:
        self.session, self.context = session, session.sparkContext

    def prepared_select(self, columns: Sequence[Any]) -> Callable[[Any], "DataFrame"]:
        chosen = self._seq(columns)
        return lambda frame: _frame(frame, frame._jdf.select(chosen))

    def select(self, columns: Sequence[Any]) -> Transform:
        select = self.prepared_select(columns)
        return lambda frame, _: select(frame)

    def where(self, condition: Any) -> Transform:
        holds = _to_java_column(condition)
        return lambda frame, _: _frame(frame, frame._jdf.filter(holds))

    def aggregate(self, keys: Sequence[str], value: Any, *more: Any) -> Transform:
        """groupBy(keys).agg(value, *more)."""
        grouping, first, rest = self._seq(column_list(keys)), value._jc, self._seq(more)
        return lambda frame, _: _frame(frame, frame._jdf.groupBy(grouping).agg(first, rest))

    def repartition(self, keys: Sequence[str], count: int | None = None) -> Transform:
        """repartition by keys; into as many partitions as the session shuffles into where no count is given."""
        columns = self._seq(column_list(keys))
        if count is None:
            return lambda frame, _: _frame(frame, frame._jdf.repartition(columns))
        return lambda frame, _: _frame(frame, frame._jdf.repartition(count, columns))

    def map_in_arrow(self, chain: Chain, takes: Sequence[str], schema: StructType, per_batch: bool) -> Transform:
        """One pass of Python workers over the rows.

        Args:
            per_batch: whether the chain must be told the batch, so that it is pickled anew for each.
        """
        if per_batch:
            sent = self._sent_once(chain)
            return lambda frame, batch: _mapped(frame, _udf(sent.for_batch(batch.info), takes, schema))
        udf = _udf(chain, takes, schema)
        return lambda frame, _: _mapped(frame, udf)

    def _sent_once(self, chain: Chain) -> Chain | SentChain:
        """A large chain is broadcast: PySpark would write it to a file anew for every batch, and keep the files."""
        serializer: Any = CloudPickleSerializer()
        pickled = serializer.dumps(chain)
        return chain if len(pickled) <= _LARGE_BYTES else SentChain(self.context.broadcast(pickled))

    def _seq(self, columns: Sequence[Any]) -> Any:
        return _to_seq(self.context, columns, _to_java_column)


def composed(*transforms: Transform) -> Transform:
    """One transform behind the other."""
    return lambda frame, batch: reduce(lambda made, transform: transform(made, batch), transforms, frame)


def column(name: str) -> Any:
    """A column of a frame by its name, whatever characters are in it."""
    return F.col(backquoted(name))


def column_list(names: Sequence[str]) -> list[Any]:
    return [column(name) for name in names]


def is_single(frame: Any) -> bool:
    """Tells whether the rows are in one Spark partition: the last step was ``coalesce(1)`` or ``repartition(1)``.

    Asking the physical plan would say more, at the price of planning the batch twice.
    """
    last = frame._jdf.queryExecution().logical()
    return last.nodeName() in ("Repartition", "RepartitionByExpression") and last.numPartitions() == 1


def partitions_of(frame: Any) -> int:
    """The number of Spark partitions of a frame that moves no rows: of one that does, that would take a job."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def bytes_read(frame: Any) -> int:
    """Of the files that are read, as far as Spark can tell without a job."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def rows_max(frame: Any) -> int | None:
    """The number of rows that Spark knows a frame cannot exceed; None: it knows none."""
    greatest = frame._jdf.queryExecution().optimizedPlan().maxRows()
    return int(str(greatest.get())) if greatest.isDefined() else None


def compute_once(frame: Any, kept: list["DataFrame"]) -> "DataFrame":
    """Computes the frame now, in a checkpoint that is put into ``kept`` first: a failure's blocks are freed too."""
    return compute_and_count(frame, kept)[0]


def compute_and_count(frame: Any, kept: list["DataFrame"]) -> tuple["DataFrame", int]:
    """As :func:`compute_once`; and the number of its rows."""
    with faults.fault_point(KEEP):
        checkpoint: ClassicDataFrame = frame.localCheckpoint(eager=False)
        kept.append(checkpoint)
        return checkpoint, int(checkpoint._jdf.queryExecution().analyzed().rdd().count())


def free(kept: list["DataFrame"]) -> None:
    """Frees the blocks of checkpoints, once nothing that was made of them is read any more. May be called again."""
    while kept:
        frame: Any = kept.pop()
        frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _frame(origin: Any, java: Any) -> "DataFrame":
    return ClassicDataFrame(java, origin.sparkSession)


def _udf(chain: Chain | SentChain, takes: Sequence[str], schema: StructType) -> Any:
    """The UDF that ``DataFrame.mapInArrow`` would make anew, and pickle, at every call."""
    make: Any = pandas_udf
    udf = make(chain, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    return udf(*column_list(takes))


def _mapped(frame: Any, udf: Any) -> "DataFrame":
    return _frame(frame, frame._jdf.mapInArrow(udf._jc, False, None))
