"""Runs the step of a keyed state with a time over batches, without Spark: its state is a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from trident.operations.timed import TimedNode
from trident.operations.timed_ops import GatherOp
from trident.planning.groups import plan
from trident.planning.operation import PyOp
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
)
from trident.workers.values import python_values


class Steps:
    """The transactions of one state, one after the other.

    Attributes:
        state: key with PART → the other columns of the state, by name.
    """

    def __init__(self, stream: Stream, clock: Any = None) -> None:
        lowered = plan(stream._graph)[0].lowered
        (segment,) = [one for one in lowered.late_segments if isinstance(one.target, TimedNode)]
        self.node: Any = segment.target
        gather, pass_ = segment.ops[-2:]
        assert isinstance(gather, GatherOp) and isinstance(pass_, PyOp) and isinstance(pass_.step, TimedStep)
        self.step: TimedStep = pass_.step
        self.state: dict[tuple, dict[str, Any]] = {}
        self._clock = clock

    def run(self, *batches: Sequence[tuple], commits: bool = True) -> tuple[list[tuple], list[list[tuple]]]:
        """The rows that go on, and the late rows of each side.

        Args:
            batches: of each side its rows, in the order of its fields.
            commits: else the attempt fails behind it, and the state stays.
        """
        spec, names = self.node.spec, self.step.keys
        rows: list[dict[str, Any]] = []
        before = [self.state.get((side + 1, *[None] * len(names)), {}).get(DUE) for side in range(len(batches))]
        now = list(before)
        for side, batch in enumerate(batches):
            fields = self.node.sides[side].names
            for place, values in enumerate(batch):
                row = dict(zip(fields, values))
                at = row.get(spec.positions[side] or "")
                at = None if at is None else int(at.timestamp()) * 10**6
                keys = {name: row[given] for name, given in zip(names, self.node.compared[side])}
                rows.append({**keys, KIND: side, ORDER: place, AT: at, ROWS[side]: row})
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
        given: list[tuple] = []
        late: list[list[tuple]] = [[] for _ in batches]
        changes: list[dict[str, Any]] = []
        for frame in self.step.run(iter([Frame(columns, len(rows), Meter())])):
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
