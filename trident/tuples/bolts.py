"""The classes that users write bolts with; their tuples and collectors are in ``collectors.py``.

A bolt of Storm, with one difference that matters: an instance lives for one
*round*, not for the life of the topology. A round is what the spouts had ready;
its tuples go through each bolt in one Spark job, in which each task of the bolt
has an instance of its own (:mod:`trident.tuples.topology`). Data that must
outlive a round belongs to a store or to Trident's states, never to ``self``.

Imported by every worker: keep its imports light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trident.tuples.collectors import BasicOutputCollector, OutputCollector, Tuple


@dataclass(frozen=True)
class BoltContext:
    """A bolt's ``prepare`` is given it.

    Attributes:
        topology, bolt: names.
        task: the number of this task of the bolt, from 0; the same when Spark tries it again.
        tasks: how many the bolt has.
    """

    topology: str
    bolt: str
    task: int
    tasks: int


class RichBolt:
    """The base of a bolt that anchors and acknowledges for itself.

    ::

        class Split(RichBolt):
            fields = "word"

            def execute(self, tuple):
                for word in tuple["line"].split():
                    self.collector.emit(word, anchors=tuple)
                self.collector.ack(tuple)

    The bolt's duty: every tuple is acknowledged or failed, in ``cleanup`` at the
    latest; one that is neither stays pending, and its message comes again
    after the message timeout. A tuple may be executed more than once, also the
    same one, when Spark tries a task again: the bolt's side effects must bear
    that. When ``execute`` raises, its tuple fails (in Storm the worker dies).

    An instance sees its tasks' tuples of one round, in no promised order, and no
    other round.

    Attributes:
        fields: of what it emits: ``"word, n"``, a list of names, or a mapping
            from streams to these; ``""``: it emits nothing.
        collector, context: set before ``prepare``.
    """

    fields: Any = ""
    collector: OutputCollector
    context: BoltContext

    def prepare(self, context: BoltContext) -> None:
        """Called on the worker before the first tuple of a round; not for a round without tuples."""

    def execute(self, tuple: Tuple) -> None:
        """Processes one tuple."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def cleanup(self) -> None:
        """Called behind the last tuple of a round: the last moment to emit and to acknowledge.

        An exception of its fails every message of the round. Not called when the worker dies.
        """


class BasicBolt:
    """The base of a bolt whose tuples are anchored and acknowledged for it.

    Tuples that ``execute`` emits are anchored to its input; the input is
    acknowledged when it returns, and fails when it raises. For the rest see :class:`RichBolt`.

    ::

        class Split(BasicBolt):
            fields = "word"

            def execute(self, tuple, collector):
                for word in tuple["line"].split():
                    collector.emit(word)
    """

    fields: Any = ""
    context: BoltContext

    def prepare(self, context: BoltContext) -> None:
        """See :meth:`RichBolt.prepare`."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        """Processes one tuple."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def cleanup(self) -> None:
        """See :meth:`RichBolt.cleanup`; nothing can be emitted here, since there is no input to anchor to."""
