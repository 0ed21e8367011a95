"""The operation of a grouped stream that keeps a state and timers for each key: ``process``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from trident.operations import timed
from trident.operations.processes import process
from trident.planning.nodes import Names, Node
from trident.streams.rows import RowOperations
from trident.streams.states import add_sink

# The stream without the grouping.
Ungrouped = TypeVar("Ungrouped")


class TimedOperations(RowOperations, Generic[Ungrouped]):
    """Operations of a grouped stream that keep something for each key by time."""

    if TYPE_CHECKING:

        def _ungrouped(self, node: Node) -> Ungrouped: ...

    def process(
        self,
        inputs: Union[Names, None],
        processor: Any,
        outputs: Any,
        state: Any,
        name: Union[str, None] = None,
    ) -> Ungrouped:
        """Calls an object of yours for the rows of each key, and at times that it sets, with a state of the key.

        ::

            class Abandoned:
                \"\"\"Tells which baskets saw nothing for half an hour.\"\"\"

                def on_row(self, context, items, at):
                    context.clear()                                  # the timer of the row before, too
                    context.state = items
                    context.set_timer(at + timedelta(minutes=30))

                def on_time(self, context, time):
                    yield time, context.state
                    context.clear()

            baskets.with_watermark("at", "1 minute").group_by("user").process(
                "items, at", Abandoned(), "since timestamp, items long", state="items long"
            )

        ``on_row(context, *inputs)`` is called for each row in order of arrival, then ``on_time(context, time)``
        for each timer of the key that is due, in order of time. Both return rows as the function of ``each`` does:
        a value (one output) or a tuple (several), several of them, or None. The context is a
        :class:`trident.TimerContext`: the ``key``, its ``state``, ``now``, ``set_timer``, ``clear_timer``, ``clear``.

        Behind ``with_watermark`` time is event time: a timer is due in the first transaction whose watermark has
        reached it, and a row before the watermark of the transaction before, or without a time, is late: among
        :meth:`Stream.late_rows`, and not given to ``on_row``. Without it time is that of the transaction, read once
        in its turn. Either way timers fire in a transaction only: one without rows fires those of processing time.

        Each timer fires exactly once, and each row counts exactly once, over replays, crashes and restarts: state
        and timers are a keyed state of the group. The object's own attributes are not kept, and an attempt that
        fails is called again: what it does elsewhere may happen twice.

        Args:
            inputs: the fields that ``on_row`` is given.
            processor: with ``on_row`` and ``on_time``; and ``prepare`` and ``cleanup``, as other functions may have.
            outputs: the fields behind the keys, with their types.
            state: the fields of a key's state, with their types: ``"n long, last timestamp"``.
            name: of the state; one after the topology's name when left out.

        Raises:
            FieldError: a field does not exist, or cannot be a key.
            OutputTypeError: a type is missing.
            TopologyError: the object lacks a method, or takes other arguments.
        """
        return self._process(inputs, processor, outputs, state, name)

    def _process(self, inputs: Any, processor: Any, outputs: Any, state: Any, name: Any, **clock: Any) -> Ungrouped:
        node = process(self._graph, self._node, self._keys, inputs, processor, outputs, state, name, **clock)
        add_sink(self._graph, node)
        return self._ungrouped(timed.rows_of(node))
