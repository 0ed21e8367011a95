"""Storm's own topologies: rich spouts and bolts, message by message, at least once (docs/semantics.md 6).

Where a Trident topology commits batches exactly once, this one follows every
message through the tuples that are made of it and tells its spout how it ended.
Spark jobs are its workers: the messages that the spouts have ready are a
*round*, and in a round each level of bolts is one Spark job, with one task, one
Python worker and one instance of the bolt per unit of parallelism.

Losses (docs/semantics.md 6.3): a Python worker that dies is tried again by
Spark, as often as its settings allow; after that the round's messages that are
not settled fail, their spouts hand them out again, and the topology goes on.
The acker and the spouts live in the driver's process: when it dies they die
with it, and the next start's spouts hand out all that was not acknowledged.
Nothing is kept in ZooKeeper or on disk: two processes that run one topology
both work, each on what its own spouts give it.

Unlike Storm: an instance of a bolt lives for one round; there are no cycles and
no ticks; direct grouping is a custom grouping; a bolt that raises fails its
tuple instead of its worker; and a round that takes longer than
``message_timeout_secs`` is cancelled as a whole, and the next one is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TopologyError
from trident.running import interrupts, process_defaults
from trident.running.cluster_checks import master_of, prepare_cluster
from trident.spark import stores
from trident.spark.cluster_files import renew_workers
from trident.spark.session import check_kind, check_session, make_session, spark_settings
from trident.spouts.rich import DEFAULT_STREAM, is_rich_spout
from trident.states.core.addresses import check_hosts
from trident.states.core.names import check_name
from trident.states.core.storage import explained_storage_errors
from trident.streams.other_names import BOLT_NAMES, TUPLE_TOPOLOGY_NAMES, OtherNames
from trident.tuples.bolts import Grouping
from trident.tuples.plan import Declared, Edge, TuplePlan, is_basic, plan_tuples, streams_of
from trident.tuples.query import TupleQuery
from trident.udf.signatures import call_site, check_serialisable
from trident.udf.types import parse_outputs
from trident.watching.listeners import TopologyListener, checked_listeners, made_listeners


class TupleTopology(OtherNames):
    """Describes a topology of spouts and bolts; nothing runs before :meth:`start`.

    ::

        topology = TupleTopology("names")
        topology.set_spout("texts", Texts())
        topology.set_bolt("split", SplitNames(), parallelism=2).shuffle_grouping("texts")
        topology.set_bolt("count", Last(), parallelism=2).fields_grouping("split", "name")
        query = topology.start()

    Args:
        name: a letter, then letters, digits, ``_`` or ``-``.

    Raises:
        TopologyError: the name cannot be used.
    """

    _OTHER_NAMES = TUPLE_TOPOLOGY_NAMES

    def __init__(self, name: str) -> None:
        self.name = check_name("topology", name)
        self._spouts: dict[str, Declared] = {}
        self._bolts: dict[str, Declared] = {}

    def __repr__(self) -> str:
        return f"TupleTopology({self.name!r})"

    def set_spout(self, name: str, spout: Any, parallelism: int = 1) -> None:
        """Adds a source of messages, which lives on the driver.

        Args:
            name: distinct among spouts and bolts.
            spout: a :class:`~trident.spouts.rich.RichSpout`.
            parallelism: spout tasks. With several, each is a copy of its own
                (``copy.deepcopy``) with its own ``max_pending_messages``; their calls
                still come one at a time.

        Raises:
            TopologyError: the name is taken, or it is no spout.
            FieldError: a field is named twice.
        """
        if not is_rich_spout(spout):
            raise TopologyError(
                f"{name!r} is no spout",
                found=repr(spout),
                expected="an object with open, next_tuple, ack and fail, such as a RichSpout",
            )
        streams = streams_of(getattr(spout, "fields", ""), f"spout {name!r}")
        if not streams:
            raise TopologyError(
                f"spout {name!r} has no fields",
                found=f"{type(spout).__name__}.fields = ''",
                expected='names, as in "word, n"',
            )
        self._spouts[name] = self._declared("spout", name, spout, parallelism, streams)

    def set_bolt(self, name: str, bolt: Any, parallelism: int = 1) -> "BoltDeclarer":
        """Adds a bolt; the groupings of what this returns say where its tuples come from.

        Args:
            name: distinct among spouts and bolts.
            bolt: a :class:`~trident.tuples.bolts.RichBolt` or :class:`~trident.tuples.bolts.BasicBolt`.
            parallelism: tasks.

        Raises:
            TopologyError: the name is taken, it has no ``execute``, or it cannot be sent to the workers.
            FieldError: a field is named twice.
        """
        if isinstance(bolt, type) or not callable(getattr(bolt, "execute", None)):
            raise TopologyError(
                f"{name!r} is no bolt",
                found=repr(bolt),
                expected="an object with execute, such as a RichBolt or a BasicBolt",
            )
        is_basic(bolt)
        streams = streams_of(getattr(bolt, "fields", ""), f"bolt {name!r}")
        declared = self._declared("bolt", name, bolt, parallelism, streams)
        check_serialisable(bolt, f"bolt {name!r}")
        self._bolts[name] = declared
        return BoltDeclarer(declared)

    def _declared(self, kind: str, name: str, user: Any, parallelism: int, streams: Any) -> Declared:
        check_name(kind, name)
        if name in self._spouts or name in self._bolts:
            raise TopologyError(f"the topology has a spout or bolt {name!r} already", action="choose another name")
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
            raise TopologyError(
                f"the number of tasks of {kind} {name!r} is wrong",
                found=repr(parallelism),
                expected="a whole number from 1",
            )
        return Declared(name, user, parallelism, streams, call_site())

    def plan(self) -> TuplePlan:
        """Checks the topology as a whole; for the framework.

        Raises:
            TopologyError, FieldError: it cannot run as declared.
        """
        return plan_tuples(self.name, self._spouts, self._bolts)

    def explain(self) -> str:
        """The spouts, and the levels of bolts: one Spark job each and round, with as many tasks as is said.

        Raises:
            TopologyError, FieldError: it cannot run as declared.
        """
        plan = self.plan()
        lines = [f"tuple topology {self.name}", "  spouts, on the driver"]
        lines += [f"    {one.name} x{one.tasks}: {_streams(self._spouts[one.name])}" for one in plan.spouts]
        for level, codes in plan.levels.items():
            lines.append(f"  level {level}, a Spark job of {plan.slots(level)} tasks")
            for code in codes:
                own = self._bolts[code.name]
                taken = ", ".join(f"{edge.grouping} of {edge.source}.{edge.stream}" for edge in own.edges)
                lines.append(f"    {code.name} x{code.tasks} by {taken}: {_streams(own)}")
        return "\n".join(lines)

    @explained_storage_errors()
    def start(
        self,
        spark: "SparkSession | None" = None,
        config: "TridentConfig | None" = None,
        *,
        listeners: "Iterable[TopologyListener]" = (),
        **overrides: Any,
    ) -> "TupleQuery":
        """Starts the topology and returns at once.

        Args:
            spark: the session to run on; one is made when None.
            config: settings; ``message_timeout_secs``, ``max_attempts``, ``ackers`` and
                ``max_pending_messages`` are those that count here.
            listeners: are told what it does; see :class:`trident.TopologyListener`. The setting ``listener_classes``
                adds others.
            overrides: single settings by name; they win over config.

        Raises:
            TopologyError, FieldError: it cannot run as declared.
            ConfigError: a listener is none, or a setting cannot be used.
            SparkSessionProblem, JavaProblem: the session or the machine lacks something.
        """
        process_defaults.install()
        if spark is not None:
            check_kind(spark)
        config = as_config(config).replace(**overrides)
        plan, notified = self.plan(), [*made_listeners(config.listener_classes), *checked_listeners(listeners)]
        self.check_master(master_of(spark, config))
        warehouse = config.warehouse_place()
        # Two of one name do not meet there: one writer or several, it is all the same.
        stores.prepare_store(warehouse, spark, dict(config.spark_conf), single_writer=True)
        with interrupts.while_starting():
            if spark is None:
                spark = make_session(f"trident {self.name}", spark_settings(config))
            check_session(spark)
            interrupts.prepare()
            interrupts.check()
            stores.configure_by_session(warehouse, spark)
            renew_workers(spark.sparkContext)
            prepare_cluster(spark, None, config.python_archive)
            return TupleQuery(plan, spark, config, notified)._started()

    def check_master(self, master: str) -> None:
        """Raises TopologyError where a spout or bolt lives on one host and the Spark master is a cluster's."""
        for kind, declared in (("spout", self._spouts), ("bolt", self._bolts)):
            for name, one in declared.items():
                check_hosts(one.user, f"{kind} {name!r}", master)


class BoltDeclarer(OtherNames):
    """Where a bolt's tuples come from; made by :meth:`TupleTopology.set_bolt`.

    Each call adds a source; a bolt may have several. Names are checked when the
    topology starts, so sources may be declared later.
    """

    _OTHER_NAMES = BOLT_NAMES

    def __init__(self, declared: Declared) -> None:
        self._bolt = declared

    def shuffle_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> "BoltDeclarer":
        """Each tuple to one task, to all of them in turn."""
        return self._add(source, stream, Grouping("shuffle"))

    def none_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> "BoltDeclarer":
        """It does not matter to which task: as shuffle, which is Storm's answer too."""
        return self._add(source, stream, Grouping("shuffle"))

    def fields_grouping(self, source: str, fields: Any, stream: str = DEFAULT_STREAM) -> "BoltDeclarer":
        """Tuples whose values in these fields are equal to one task.

        Args:
            fields: ``"word"``, ``"word, day"`` or a list of names.
        """
        names = tuple(name for name, _ in parse_outputs(fields))
        return self._add(source, stream, Grouping("fields", names))

    def all_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> "BoltDeclarer":
        """Each tuple to every task; all of them belong to its tree."""
        return self._add(source, stream, Grouping("all"))

    def global_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> "BoltDeclarer":
        """All tuples to the first task."""
        return self._add(source, stream, Grouping("global"))

    def custom_grouping(
        self, source: str, function: Callable[..., Any], stream: str = DEFAULT_STREAM
    ) -> "BoltDeclarer":
        """Each tuple to the tasks that a function chooses.

        Args:
            function: of the tuple's values (a Python tuple) and the bolt's tasks
                (``range(n)``); gives a list of some of them, or one. None of them: the tuple goes nowhere.

        Raises:
            TopologyError: it is no function, or cannot be sent to the workers.
        """
        what = f"the custom grouping of bolt {self._bolt.name!r}"
        if not callable(function):
            raise TopologyError(f"{what} is no function", found=repr(function), expected="a function(values, tasks)")
        check_serialisable(function, what)
        return self._add(source, stream, Grouping("custom", (), function))

    def _add(self, source: str, stream: str, grouping: Grouping) -> "BoltDeclarer":
        if any((edge.source, edge.stream) == (source, stream) for edge in self._bolt.edges):
            raise TopologyError(
                f"bolt {self._bolt.name!r} takes stream {stream!r} of {source!r} twice",
                expected="one grouping for each stream",
            )
        self._bolt.edges.append(Edge(source, stream, grouping))
        return self


def _streams(declared: Declared) -> str:
    if not declared.streams:
        return "emits nothing"
    return "; ".join(
        ("" if stream == DEFAULT_STREAM else f"{stream}: ") + ", ".join(fields)
        for stream, fields in declared.streams.items()
    )
