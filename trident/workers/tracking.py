"""Steps of tracked streams on a worker: rows that fail are told to the task's ledger, and the others go on.

A step of a :class:`trident.workers.chain.Chain` whose rows have anchors is wrapped
in :class:`TrackedStep`, which tells the :class:`trident.workers.anchors.Ledger` of the Spark
task. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from trident.workers.anchors import ANCHORS, Ledger, children_of, make_anchors, mixed, read_anchors, report_of
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label, UserCodeFailed, fail
from trident.workers.groups import _NOTHING, Groups, Held

if TYPE_CHECKING:
    from typing_extensions import Self

ROW = "__trident_row"


@dataclass(frozen=True)
class _ReportsToLedger(Step):
    """A step that reports to the ledger of its Spark task, which it is given before it runs."""

    ledger: Ledger | None = field(default=None, kw_only=True)

    def for_task(self, ledger: Ledger) -> "Self":
        return replace(self, ledger=ledger)

    @property
    def of_task(self) -> Ledger:
        assert self.ledger is not None, "for_task comes first"
        return self.ledger


@dataclass(frozen=True)
class TrackedStep(_ReportsToLedger):
    """A step row by row: an exception fails the messages of its row alone.

    The function is called for pieces of a batch; when one raises, its halves are
    tried, down to the row that it was. So a function may be called several times for
    a row that stands near one that fails.

    Attributes:
        step: the step; its kept columns hold ROW too.
        keeps: whether the anchors go on; else the rows end here, as far as their messages are concerned.
    """

    step: Any
    keeps: bool

    @property
    def label(self) -> Label:  # type: ignore[override]
        return self.step.label

    @property
    def text(self) -> str:
        return f"{self.step.text} (tracked)"

    @property
    def user(self) -> Any:
        return self.step.user

    def for_batch(self, info: Any) -> "TrackedStep":
        return replace(self, step=self.step.for_batch(info)) if hasattr(self.step, "for_batch") else self

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                yield from self._apply(frame)

    def _apply(self, frame: Frame) -> Iterator[Frame]:
        numbers = np.arange(frame.length)
        given = Frame(frame._columns, frame.length, frame.meter, dict(frame._values))
        if self.keeps:
            given._columns = {**frame._columns, ROW: pa.array(numbers)}
        try:
            results = list(self.step.run(iter([given])))
        except UserCodeFailed as error:
            yield from self._failed(frame, error)
            return
        anchors = frame.array(ANCHORS)
        if not self.keeps:
            self.of_task.ack(anchors)
            yield from results
            return
        alive = np.zeros(frame.length, bool)
        for result in results:
            index = result.array(ROW).to_numpy()
            alive[index] = True
            whole = len(index) == frame.length and bool((index == numbers).all())
            columns = {name: array for name, array in result._columns.items() if name != ROW}
            columns[ANCHORS] = anchors if whole else children_of(anchors, index)
            yield Frame(columns, result.length, result.meter, dict(result._values))
        if not alive.all():
            self.of_task.ack(anchors.filter(pa.array(~alive)))

    def _failed(self, frame: Frame, error: UserCodeFailed) -> Iterator[Frame]:
        if frame.length == 1 or report_of(error)["kind"] == "failed":
            self.of_task.fail(_roots(frame.array(ANCHORS)), error)
            return
        half = frame.length // 2
        yield from self._apply(_piece(frame, 0, half))
        yield from self._apply(_piece(frame, half, frame.length - half))


@dataclass(frozen=True)
class EndTrees(_ReportsToLedger):
    """The rows end here; their anchors go on, only to say which messages they belong to."""

    text = "end trees"

    label: Label

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                self.of_task.ack(frame.array(ANCHORS))
            yield frame


@dataclass(frozen=True)
class BeginTrees(_ReportsToLedger):
    """Rows that Spark has dropped or multiplied get ids of their own, which are told to the ledger."""

    text = "begin trees"

    label: Label

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        seen = 0
        for frame in frames:
            if not frame.length:
                continue
            counts, roots, ids = read_anchors(frame.array(ANCHORS))
            new = mixed(ids ^ mixed(np.arange(seen, seen + len(ids), dtype=np.uint64)))
            seen += len(ids)
            self.of_task.add(roots, new)
            columns = {**frame._columns, ANCHORS: make_anchors(counts, roots, new)}
            yield Frame(columns, frame.length, frame.meter, dict(frame._values))


@dataclass(frozen=True)
class TrackedGroups(_ReportsToLedger, Groups):
    """Groups whose rows have anchors: a group is anchored to all of its rows.

    A row whose fold raises fails its messages; a group whose ``complete`` raises those of all of its rows.
    """

    keeps: bool = False

    @property
    def text(self) -> str:
        return f"{super().text} (tracked)"

    def _take(self, frame: Frame, held: Held) -> None:
        counts, roots, ids = read_anchors(frame.array(ANCHORS))
        pairs = list(zip(roots.tolist(), ids.tolist()))
        ends = np.cumsum(counts).tolist()
        groups, fold, start = held.groups, held.fold, 0
        for at, (key, row, end) in enumerate(zip(self._group_keys(frame, held), frame.rows(self.inputs), ends)):
            of_row, start = pairs[start:end], end
            try:
                groups[key] = fold(groups.get(key, _NOTHING), row)
            except (Exception, SystemExit) as error:
                report = self._report(error, frame.row((*self.keys, *self.inputs), at))
                self.of_task.fail([_signed(root) for root, _ in of_row], report)
                continue
            anchors = held.anchors.setdefault(key, {})
            for root, id in of_row:
                anchors[root] = anchors.get(root, 0) ^ id

    def _report(self, error: BaseException, row: Mapping[str, Any]) -> UserCodeFailed:
        try:
            raise error
        except BaseException as again:
            try:
                fail(self.label, again, row)
            except UserCodeFailed as failed:
                return failed

    def _results(self, held: Held) -> Iterator[Frame]:
        waiting = [list(held.groups)]
        while waiting:
            keys = waiting.pop()
            try:
                found = self._frame_of(keys, held) if keys else None
            except UserCodeFailed as error:
                if len(keys) > 1:
                    half = len(keys) // 2
                    waiting += [keys[half:], keys[:half]]
                    continue
                self.of_task.fail([_signed(root) for root in held.anchors.get(keys[0], {})], error)
                continue
            if found is not None:
                yield found

    def _frame_of(self, keys: list[Any], held: Held) -> Frame:
        results, arrays, values = self._completed(keys, held)
        self._settle_or_keep(_of_groups([held.anchors.get(key, {}) for key in keys]), results.index(), arrays)
        return Frame(arrays, len(results.rows), Meter(), values)

    def _settle_or_keep(self, own: pa.Array, index: list[int] | None, arrays: dict[str, Any]) -> None:
        """The groups' rows end here, or go on in the results."""
        if not self.keeps:
            self.of_task.ack(own)
            return
        if index is None:
            arrays[ANCHORS] = own
            return
        arrays[ANCHORS] = children_of(own, np.array(index, np.int64))
        without = np.ones(len(own), bool)
        without[index] = False
        self.of_task.ack(own.filter(pa.array(without)))


def _of_groups(anchors: Sequence[Mapping[int, int]]) -> pa.Array:
    counts = np.array([len(one) for one in anchors], np.int64)
    roots = np.array([root for one in anchors for root in one], np.uint64)
    ids = np.array([id for one in anchors for id in one.values()], np.uint64)
    return make_anchors(counts, roots, ids)


def _roots(anchors: Any) -> list[int]:
    return read_anchors(anchors)[1].view(np.int64).tolist()


def _signed(root: int) -> int:
    return root - (1 << 64) if root >= 1 << 63 else root


def _piece(frame: Frame, start: int, length: int) -> Frame:
    return Frame({name: array.slice(start, length) for name, array in frame._columns.items()}, length, frame.meter)
