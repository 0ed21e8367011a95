"""What surrounds the log-structured state, as a model: Delta, a publisher, compactors, a reader.

Each read and each commit is one step, so that they interleave in every way.
The values are the txids themselves: a row of the table is the list of the
transactions that were counted into it, so that twice and never both show.
Only the decisions come from ``trident.states.keyed.compaction``.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.simulator.search import Action, Violation
from trident.states.keyed.compaction import (
    READ_AGAIN,
    LiveRead,
    LogView,
    MergePlan,
    SnapshotUnavailable,
    TableView,
    ViewsDisagree,
    guard_condition,
    plan_drop,
    plan_live_read,
    plan_merge,
)


class Log(NamedTuple):
    """``files``: the txids whose file is live at this version."""

    version: int = 0
    control: int = 0
    floor: int = 0
    files: frozenset[int] = frozenset()

    @property
    def view(self) -> LogView:
        return LogView(self.version, self.control, self.floor)


class Row(NamedTuple):
    key: str
    counted: tuple[int, ...]
    upto: int


class Table(NamedTuple):
    """``merged``: its SetTransaction."""

    version: int = 0
    merged: int = 0
    rows: frozenset[Row] = frozenset()

    @property
    def view(self) -> TableView:
        return TableView(self.version, self.merged)


class Tables(NamedTuple):
    """``append``: the control record of another table of the group."""

    log: Log = Log()
    table: Table = Table()
    append: int = 0
    advanced: int = 0


class Compactor(NamedTuple):
    """``stage`` names what it does next."""

    rounds: int
    stage: str = "pin"
    advanced: int = 0
    log: Log | None = None
    table: Table | None = None
    plan: MergePlan | None = None
    floor: int = 0


class Reader(NamedTuple):
    """``left``: what it has still to pin."""

    left: frozenset[str] = frozenset({"log", "table", "append"})
    started: bool = False
    advanced: int = 0
    log: Log | None = None
    table: Table | None = None
    append: int = 0
    done: bool = False


class World(NamedTuple):
    tables: Tables
    publisher: tuple[int, str]  # the txid it is at, and what it does next
    compactors: tuple[Compactor, ...]
    reader: Reader
    crashes: int


@dataclass(frozen=True)
class Compaction:
    """One bounded world; the model for :func:`tests.simulator.search.explore`.

    Attributes:
        keys: txid → the keys that it changes; a txid without any is an empty batch.
        compactors: how many there are, each of which goes round ``rounds`` times.
        every, force, retention: of the decisions.
        log_first: a compactor pins the log before the table, not after it.
        reader_asks_zookeeper: it reads there what has advanced before it pins the tables
            in any order; else it pins the keyed table first, and P says that.
        want: the reader wants this transaction; None for the newest; 0: no reader.
        rejects: Delta rejects a MERGE that another one overtook since its snapshot. False
            is Delta as it is not: rejected only if a row that it changes was changed.
    """

    keys: Mapping[int, str]
    compactors: int = 2
    rounds: int = 1
    every: int = 1
    force: bool = False
    retention: int = 0
    log_first: bool = False
    reader_asks_zookeeper: bool = True
    want: int | None = None
    crashes: int = 0
    rejects: bool = True

    @property
    def initial(self) -> World:
        return World(
            Tables(),
            (1, self._first_step(1)),
            (Compactor(self.rounds),) * self.compactors,
            Reader(done=self.want == 0),
            self.crashes,
        )

    @property
    def transactions(self) -> int:
        return max(self.keys)

    def _first_step(self, txid: int) -> str:
        return "publish the log" if self.keys.get(txid) else "advance"

    def finished(self, world: World) -> bool:
        return (
            world.publisher[0] > self.transactions
            and world.reader.done
            and all(compactor.rounds == 0 for compactor in world.compactors)
        )

    # --- what can happen -----------------------------------------------------------------------

    def actions(self, world: World) -> Iterator[Action]:
        txid, step = world.publisher
        if txid <= self.transactions:
            yield Action(f"{txid}: {step}", partial(self._publisher, world))
        for number, compactor in enumerate(world.compactors):
            if compactor.rounds:
                label = f"compactor {number}: {compactor.stage}"
                yield Action(label, partial(self._compactor, world, number))
            if world.crashes and compactor.stage != "pin":
                dead = self._with(world, number, Compactor(compactor.rounds))._replace(crashes=world.crashes - 1)
                yield Action(f"compactor {number} is killed", partial(self._checked, dead), fault=True)
        if not world.reader.done:
            if not world.reader.started:
                yield Action("reader: starts", partial(self._start_reading, world))
            else:
                for name in sorted(world.reader.left):
                    yield Action(f"reader: pins {name}", partial(self._pin, world, name))

    def _publisher(self, world: World) -> World:
        tables, (txid, step) = world.tables, world.publisher
        if step == "publish the log":
            log = tables.log
            after = log._replace(version=log.version + 1, control=txid, files=log.files | {txid})
            return self._checked(
                world._replace(tables=tables._replace(log=after), publisher=(txid, "publish the other"))
            )
        if step == "publish the other":
            return self._checked(world._replace(tables=tables._replace(append=txid), publisher=(txid, "advance")))
        following = (txid + 1, self._first_step(txid + 1))
        return self._checked(world._replace(tables=tables._replace(advanced=txid), publisher=following))

    # --- a compactor ------------------------------------------------------------------------------

    def _compactor(self, world: World, number: int) -> World:
        compactor = world.compactors[number]
        tables, after = self._steps[compactor.stage](self, world.tables, compactor)
        return self._checked(self._with(world._replace(tables=tables), number, after))

    def _step_pin(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        pinned = {"log": tables.log} if self.log_first else {"table": tables.table}
        return tables, compactor._replace(advanced=tables.advanced, stage="pin the other and plan", **pinned)

    def _step_plan(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        log, table = compactor.log or tables.log, compactor.table or tables.table
        try:
            plan = plan_merge(log.view, table.view, compactor.advanced, self.every, self.force)
        except ViewsDisagree:
            return tables, Compactor(compactor.rounds)
        if plan is None:
            return tables, Compactor(compactor.rounds, "drop: pin the log", compactor.advanced)
        return tables, compactor._replace(log=log, table=None, plan=plan, stage="MERGE begins")

    def _step_merge(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        # The statement reads the newest version, not the pinned one.
        return tables, compactor._replace(table=tables.table, stage="MERGE commits")

    def _step_commit(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        after = Compactor(compactor.rounds, "drop: pin the log", compactor.advanced)
        seen, plan = compactor.table, compactor.plan
        if seen.merged >= plan.upto:  # Delta skips it silently
            return tables, after
        changes = self._changes(compactor.log, plan)
        matched = {row for row in seen.rows if row.key in changes}
        if any(_sql_true(guard_condition(plan, "upto"), row.upto) for row in matched):
            return tables, after  # the statement raises
        overtaken = tables.table.version != seen.version
        if overtaken and (self.rejects or not matched <= tables.table.rows):
            return tables, after  # Delta rejects the commit
        base = {row.key: row.counted for row in matched}
        written = {Row(key, (*base.get(key, ()), *counted), plan.upto) for key, counted in changes.items()}
        rows = (tables.table.rows - matched) | written
        return tables._replace(table=Table(tables.table.version + 1, plan.upto, rows)), after

    def _changes(self, log: Log, plan: MergePlan) -> dict[str, tuple[int, ...]]:
        changes: dict[str, tuple[int, ...]] = {}
        for txid in sorted(log.files):
            if plan.after < txid <= plan.upto:
                for key in self.keys[txid]:
                    changes[key] = (*changes.get(key, ()), txid)
        return changes

    def _step_pin_log(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        return tables, compactor._replace(log=tables.log, stage="drop: read P again and plan")

    def _step_plan_drop(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        floor = plan_drop(compactor.log.view, tables.table.merged, compactor.advanced, self.retention)
        if floor is None:
            return tables, Compactor(compactor.rounds - 1)
        return tables, compactor._replace(floor=floor, stage="drop: commit")

    def _step_drop(self, tables: Tables, compactor: Compactor) -> tuple[Tables, Compactor]:
        log = tables.log
        if log.version != compactor.log.version:  # the commit conflicts
            return tables, Compactor(compactor.rounds, "drop: pin the log", compactor.advanced)
        kept = frozenset(txid for txid in log.files if txid > compactor.floor)
        after = Log(log.version + 1, compactor.log.control, compactor.floor, kept)
        return tables._replace(log=after), Compactor(compactor.rounds - 1)

    _steps = {
        "pin": _step_pin,
        "pin the other and plan": _step_plan,
        "MERGE begins": _step_merge,
        "MERGE commits": _step_commit,
        "drop: pin the log": _step_pin_log,
        "drop: read P again and plan": _step_plan_drop,
        "drop: commit": _step_drop,
    }

    # --- the reader ----------------------------------------------------------------------------------

    def _start_reading(self, world: World) -> World:
        reader, table = world.reader._replace(started=True), world.tables.table
        if self.reader_asks_zookeeper:
            reader = reader._replace(advanced=world.tables.advanced)
        else:  # what is merged had advanced
            reader = reader._replace(left=reader.left - {"table"}, table=table, advanced=table.merged)
        return self._checked(world._replace(reader=reader))

    def _pin(self, world: World, name: str) -> World:
        reader = world.reader
        reader = reader._replace(left=reader.left - {name}, **{name: getattr(world.tables, name)})
        if not reader.left:
            reader = self._read(reader)
        return self._checked(world._replace(reader=reader))

    def _read(self, reader: Reader) -> Reader:
        pairs = [(reader.log.view, reader.table.view)]
        try:
            plan = plan_live_read(pairs, [reader.append], self.want, reader.advanced)
        except SnapshotUnavailable:
            newest = max(reader.advanced, min(reader.log.control, reader.append))
            if self.want is None or (newest >= self.want and max(reader.log.floor, reader.table.merged) <= self.want):
                raise Violation(f"{self.want} could be read: {reader}") from None
            return Reader(done=True)
        if plan is READ_AGAIN:
            return Reader()
        self._check_read(reader, plan)
        return Reader(done=True)

    def _check_read(self, reader: Reader, plan: LiveRead) -> None:
        wanted = self.want if self.want is not None else plan.txid
        if self.want is None:
            if plan.txid > max(reader.advanced, min(reader.log.control, reader.append)):
                raise Violation(f"a live read of {plan.txid}, which is half published")
            if any(plan.txid < txid <= reader.advanced and self.keys.get(txid) for txid in self.keys):
                raise Violation(f"a live read of {plan.txid} though {reader.advanced} had advanced before it began")
        ((after, upto),) = plan.ranges
        state = {row.key: row.counted for row in reader.table.rows}
        for txid in sorted(reader.log.files):
            if after < txid <= upto:
                for key in self.keys[txid]:
                    state[key] = (*state.get(key, ()), txid)
        if state != self._exact(wanted):
            raise Violation(f"a live read as of {wanted} gives {state}, not {self._exact(wanted)}")

    # --- what must hold --------------------------------------------------------------------------------

    def _with(self, world: World, number: int, compactor: Compactor) -> World:
        if compactor.rounds == 0:
            compactor = Compactor(0)
        compactors = (*world.compactors[:number], compactor, *world.compactors[number + 1 :])
        # Compactors are alike: worlds that differ in their numbering only are one.
        return world._replace(compactors=tuple(sorted(compactors, key=hash)))

    def _exact(self, txid: int) -> dict[str, tuple[int, ...]]:
        exact: dict[str, tuple[int, ...]] = {}
        for number in sorted(self.keys):
            for key in self.keys[number] if number <= txid else "":
                exact[key] = (*exact.get(key, ()), number)
        return exact

    def _checked(self, world: World) -> World:
        log, table, _, advanced = world.tables
        if log.floor > table.merged:
            raise Violation(f"the log was dropped up to {log.floor}, the table is merged up to {table.merged}")
        if table.merged > advanced:
            raise Violation(f"{table.merged} is merged, but {advanced} is the last that advanced")
        if advanced - log.floor < self.retention and log.floor:
            raise Violation(f"the log begins after {log.floor}, {self.retention} before {advanced} must be kept")
        counted = sorted((row.key, row.counted) for row in table.rows)
        if counted != sorted(self._exact(table.merged).items()):
            raise Violation(f"merged up to {table.merged} the table holds {counted}")
        missing = {txid for txid in range(table.merged + 1, log.control + 1) if self.keys.get(txid)} - log.files
        if missing:
            raise Violation(f"transactions {missing} are neither in the table nor in the log")
        return world


@functools.cache
def _sql_true(condition: str, upto: int) -> bool:
    """What a SQL engine makes of the condition, for a row with this ``upto``."""
    with sqlite3.connect(":memory:") as connection:
        return bool(connection.execute(f"SELECT {condition} FROM (SELECT ? AS upto)", (upto,)).fetchone()[0])
