"""Runs the step of a keyed state with a time over batches, without Spark: its state is a dict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trident.operations.timed import GatherOp, TimedNode
from trident.planning.groups import plan
from trident.planning.operation import PyOp, arrow_type
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, new_folder
from trident.states.core.typed_values import python_values
from trident.streams.stream import Stream
from trident.workers.chain import Frame, Meter
from trident.workers.timed import (
    AT,
    BEFORE,
    CHANGED,
    DELETED,
    DUE,
    GIVEN,
    GOES_ON,
    IS_LATE,
    KIND,
    LATE,
    MARK,
    NOW,
    ORDER,
    PART,
    ROWS,
    STORED,
    TAG,
    TimedStep,
    later,
    whole,
)


class Steps:
    """The transactions of one state, one after the other.

    Attributes:
        state: key with PART → the other columns of the state, by name.
    """

    def __init__(self, stream: Stream, clock: Any = None, copies: Path | None = None) -> None:
        lowered = plan(stream._graph)[0].lowered
        (segment,) = [one for one in lowered.late_segments if isinstance(one.target, TimedNode)]
        self.node: Any = segment.target
        self._new, gather, pass_ = segment.ops[-3:]
        assert isinstance(gather, GatherOp) and isinstance(pass_, PyOp) and isinstance(pass_.step, TimedStep)
        self.step: TimedStep = pass_.step
        assert gather.on_arrow is not None
        self._gather: Any = gather.on_arrow.step
        self._copies = copies
        self.state: dict[tuple, dict[str, Any]] = {}
        self._clock = clock

    def run(self, *batches: Sequence[tuple], commits: bool = True) -> tuple[list[tuple], list[list[tuple]]]:
        """The rows that go on, and the late rows of each side.

        Args:
            batches: of each side its rows, in the order of its fields.
            commits: else the attempt fails behind it, and the state stays.
        """
        names = self.step.keys
        gathered = self._by_tables(batches) if self._copies is None else self._by_copy(batches)
        given: list[tuple] = []
        late: list[list[tuple]] = [[] for _ in batches]
        changes: list[dict[str, Any]] = []
        for frame in self.step.run(iter([gathered])):
            listed = {name: python_values(frame.array(name)) for name, _ in self.step.gives}
            assert all(frame.array(name).type == kind for name, kind in self.step.gives)
            for place, tag in enumerate(listed[TAG]):
                if tag == CHANGED:
                    changes.append({name: values[place] for name, values in listed.items()})
                elif tag == GOES_ON:
                    given.append(tuple(listed[GIVEN][place].values()))
                else:
                    late[tag - IS_LATE].append(tuple(listed[LATE[tag - IS_LATE]][place].values()))
        keys_of = [tuple(change[name] for name in (PART, *names)) for change in changes]
        assert len(set(keys_of)) == len(keys_of), "one change a key"
        if commits:
            for key, change in zip(keys_of, changes):
                self.state.pop(key, None)
                if not change[DELETED]:
                    self.state[key] = {name: change[name] for name in self.node.binding.schema.names}
        return given, late

    def _rows(self, batches: Sequence[Sequence[tuple]]) -> list[dict[str, Any]]:
        """The new rows in the form that rules take."""
        rows: list[dict[str, Any]] = []
        for side, batch in enumerate(batches):
            fields, position = self.node.sides[side].names, self.node.spec.positions[side]
            for place, values in enumerate(batch):
                row = dict(zip(fields, values))
                at = row.get(position or "")
                at = None if at is None else int(at.timestamp()) * 10**6
                keys = {name: row[given] for name, given in zip(self.step.keys, self.node.compared[side])}
                rows.append({**keys, KIND: side, ORDER: place, AT: at, ROWS[side]: row})
        return rows

    def _by_tables(self, batches: Sequence[Sequence[tuple]]) -> Frame:
        """As the operations by Spark gather it."""
        spec, names, rows = self.node.spec, self.step.keys, self._rows(batches)
        before = [self.state.get((side + 1, *[None] * len(names)), {}).get(DUE) for side in range(len(batches))]
        now = list(before)
        for row in rows:
            side, at = row[KIND], row[AT]
            if at is not None:
                mark = later(at, -spec.delays[side])
                now[side] = mark if now[side] is None else max(mark, now[side])
        if self._clock is not None:
            now = [max(self._clock(), before[0] or 0)]
        marks = (spec.watermark(before), spec.watermark(now))
        asked = {tuple(row[name] for name in names) for row in rows}
        for key, entry in self.state.items():
            due = marks[1] is not None and entry[DUE] is not None and entry[DUE] <= marks[1]
            if key[0] == 0 and (key[1:] in asked or due):
                rows.append({**entry, KIND: STORED})
        rows += [{PART: n + 1, DUE: m, KIND: MARK} for n, m in enumerate(now) if m is not None and m != before[n]]
        columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in self.step.takes}
        columns |= {name: pa.array([mark] * len(rows), pa.int64()) for name, mark in zip((BEFORE, NOW), marks)}
        return Frame(columns, len(rows), Meter())

    def _by_copy(self, batches: Sequence[Sequence[tuple]]) -> Frame:
        """As the steps over Arrow gather it, of a local copy of the state."""
        if len(batches) == 1:
            new: Any = self._new.on_arrow.step
            fields = self.node.sides[0].fields
            columns = {
                field.name: pa.array([row[place] for row in batches[0]], arrow_type(field.dataType))
                for place, field in enumerate(fields)
            }
            frames = list(new.run(iter([Frame(columns, len(batches[0]), Meter())])))
        else:
            rows = self._rows(batches)
            columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in self._gather.takes}
            frames = [Frame(columns, len(rows), Meter())]
        binding = self.node.binding
        schema = pa.schema([(field.name, arrow_type(field.dataType)) for field in binding.schema.fields])
        codec, mark = RowCodec(schema, binding.keys), CopyMark("inc", 1, "digest", "commit")
        assert self._copies is not None
        asked = CopyAsOf(new_folder(self._copies), mark, schema, binding.keys, binding.ordered_by)
        copy = LocalCopy(asked.folder, 1 << 26, asked.values)
        try:
            entries = pa.Table.from_pylist(list(self.state.values()), schema=schema)
            copy.apply([codec.rows(entries, binding.ordered_by)], None, mark)
            gathered = list(self._gather.with_copies({binding.name: asked}).run(iter(frames)))
        finally:
            copy.delete()
        return Frame(*whole(iter(gathered), self._gather.gives), Meter())
