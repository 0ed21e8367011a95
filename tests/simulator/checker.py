"""What must hold, judged from what the world has seen: znodes as stored, tables, sources, emissions.

Nothing of the framework is imported here, and nothing of it is asked: znodes
are read as plain JSON. A claim that does not hold ends the run at that moment.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

ROOT = "/trident/wc"
_LIVE = f"{ROOT}/live"
_INTENT = f"{ROOT}/rollback.unfinished"
TABLES = ("counts", "lines")
Attempt = tuple[int, int]


@functools.lru_cache(maxsize=256)
def parsed(data: bytes | str) -> Any:
    """A stored value; the same object for the same bytes, not to be changed."""
    return json.loads(data)


class Violation(Exception):
    """A claim does not hold."""


class Checker:
    """The claims on one run.

    Args:
        world: for the trace and the counters.
        group: the batch group's name.
        sources: name -> the source, of which kinds and rows are asked.
        window: max_spout_pending.
    """

    def __init__(self, world: Any, group: str, sources: Mapping[str, Any], window: int) -> None:
        self._world, self._sources, self._window = world, sources, window
        self.on_progress: Any = lambda: None
        self.on_rollback_begun: Any = lambda: None
        self.advanced_now = False  # by the last write
        self._group = f"{ROOT}/{group}"
        self.leader: Any = None  # the process that acquired last
        self._epochs: dict[Any, set[int]] = {}  # of each process that has led
        self.record: dict[str, Any] | None = None
        self.decided: dict[str, Any] | None = None
        self._decided_by: Any = None
        self._decided: dict[int, tuple[Attempt, str]] = {}  # txid -> (attempt, digest), for ever
        self._greatest: dict[int, int] = {}  # txid -> the greatest attempt id that ever began
        self._pins: dict[tuple[str, int], Any] = {}
        self._pins_of: dict[Attempt, dict[str, Any]] = {}  # as of its begin
        self._opaque: dict[str, set[int]] = {}
        self._emitted: dict[Attempt, dict[str, list[Any]]] = {}
        self._advanced: dict[int, Attempt] = {}
        self._advanced_by: dict[int, Any] = {}
        self._tables: dict[str, list[int]] = {name: [] for name in TABLES}
        self._acknowledged: dict[int, Attempt] = {}
        self._looked_up: dict[Attempt, list[tuple[int, list[Any]]]] = {}
        self.clocks_are_right = True
        self._request: tuple[int, Any, str] | None = None  # (epoch, chosen process, its id), while the request is there
        self._requested: set[int] = set()  # every epoch that was asked to give way
        self._given: tuple[int, Any, str, float] | None = None  # what a lease was given back for, and when
        self.contenders: set[str] = set()  # ids whose znodes are there
        self._told: Counter[tuple[int, str]] = Counter()  # (txid, stream): how often success was told
        self.intent: dict[str, Any] | None = None  # of a rollback that has not ended
        self._taken_back: set[Attempt] = set()  # had advanced before a rollback

    def _claim(self, holds: object, otherwise: str) -> None:
        if not holds:
            # Also where somebody catches every exception.
            self._world.crash = Violation(otherwise)
            raise self._world.crash

    def leads(self, process: Any) -> bool:
        return process is self.leader

    def tables_with(self, txid: int) -> int:
        """How many tables have a transaction."""
        return sum(txid in txids for txids in self._tables.values())

    # --- ZooKeeper -----------------------------------------------------------------------------

    def on_write(self, writer: Any, zxid: int, changes: Mapping[str, bytes | None]) -> None:
        """A multi has happened."""
        self.advanced_now = False
        self._on_handover(writer, changes)
        if f"{self._group}/leader" in changes:
            self.leader = writer
            self._epochs.setdefault(writer, set()).add(self._parsed(changes, f"{self._group}/leader", None)["epoch"])
        if writer is not None and changes.get(_LIVE, b"") is None:
            self._claim(not writer.working, f"{writer} gives its lease back, and {writer.working} of its threads work")
        if _INTENT in changes:
            self._on_intent(writer, changes[_INTENT])
        own = {path: data for path, data in changes.items() if self._is_state(path)}
        # Making an empty parent is not a write of the group's state.
        if not any(own.values()) and None not in own.values():
            return
        self._claim(
            writer is not None and writer is self.leader,
            f"a write of {writer} was accepted, but {self.leader} leads: {sorted(own)}",
        )
        decided = self._parsed(own, f"{self._group}/decided", self.decided)
        record = self._parsed(own, f"{self._group}/coordinator", self.record)
        if self.record and record and record["incarnation"] != self.record["incarnation"]:
            self._on_rollback(record, decided, own)
            self.record, self.decided = record, decided
            return
        self._read_pins(own)
        if record != self.record:
            self._on_record(self.record, record, decided, writer)
        if decided != self.decided:
            self._on_decided(record, decided, writer)
        self.record, self.decided = record, decided

    # --- hand-overs ----------------------------------------------------------------------------

    def on_request(self, epoch: int, chosen: Any, id: str) -> None:
        """A command asks the leader of an epoch to give way to a process; its znode comes right behind this."""
        self._request = (epoch, chosen, id)
        self._requested.add(epoch)

    def on_gives_way(self, process: Any, epoch: int) -> None:
        """A leader begins to give way."""
        self._claim(epoch in self._requested, f"{process} gives way in epoch {epoch}, asked were {self._requested}")

    def _on_handover(self, writer: Any, changes: Mapping[str, bytes | None]) -> None:
        for path, data in changes.items():
            if path.startswith(f"{ROOT}/handover.processes/"):
                id = path.rpartition("/")[2]
                (self.contenders.discard if data is None else self.contenders.add)(id)
        if changes.get(f"{ROOT}/handover.request", b"") is None:
            self._request = self._given = None
        if f"{self._group}/leader" in changes:
            self._on_takes(writer)
            self._given = None
        elif writer is not None and changes.get(_LIVE, b"") is None and self._request is not None:
            if self._request[0] == max(self._epochs.get(writer, {0})):
                self._given = (*self._request, self._world.now)

    def _on_takes(self, writer: Any) -> None:
        """A lease that was given back while a hand-over was there is the chosen one's, as long as that one lives."""
        if self._given is None:
            return
        _, chosen, id, at = self._given
        if writer is chosen:
            self._world.reached("the chosen standby leads")
        elif not chosen.dead and id in self.contenders and self.clocks_are_right:
            waited = self._world.now - at
            self._claim(waited > 9.0, f"{writer} takes the lease {waited:.3f} s after it was given back for {chosen}")

    def _is_state(self, path: str) -> bool:
        tail = path[len(ROOT) + 1 :].split("/")[1:]
        return bool(tail) and tail[0] in ("coordinator", "decided", "partitions")

    def _parsed(self, changes: Mapping[str, bytes | None], path: str, otherwise: Any) -> Any:
        if path not in changes:
            return otherwise
        data = changes[path]
        return parsed(data) if data else None

    def _read_pins(self, changes: Mapping[str, bytes | None]) -> None:
        for path, data in changes.items():
            parts = path[len(ROOT) + 1 :].split("/")
            if len(parts) == 3 and parts[1] == "coordinator":
                self._on_pin((parts[0], int(parts[2])), parsed(data)["value"] if data else None)
            elif len(parts) == 3 and parts[1] == "partitions":
                stored = self._opaque.setdefault(parts[0], set())
                (stored.add if data else stored.discard)(int(parts[2]))

        for name, stored in self._opaque.items():
            self._claim(len(stored) <= 1, f"{name}: of two partitions the pages {sorted(stored)} are kept")

    def _on_pin(self, key: tuple[str, int], value: Any) -> None:
        name, txid = key
        before = self._pins.get(key)
        if value is None:
            self._pins.pop(key, None)
            return
        self._claim(txid not in self._decided, f"transaction {txid} is decided, and {name} is pinned anew: {value}")
        if before is not None and before != value:
            self._claim(
                before[0] == value[0] and value[1] < before[1], f"{name} {txid} is pinned as {value}, it was {before}"
            )
            self._world.reached("pinned again smaller after a timeout")
        last = self._pins.get((name, txid - 1))
        if last is not None:
            self._claim(value[0] == last[1], f"{name} {txid} begins at {value[0]}, {txid - 1} ends at {last[1]}")
        self._pins[key] = value
        count = sum(1 for other, _ in self._pins if other == name)
        self._claim(count <= self._window + 1, f"{count} pins of {name} are kept")

    def _on_record(self, old: Any, new: Any, decided: Any, writer: Any) -> None:
        self._claim(new is not None, "the group's record was deleted")
        if old is None:
            self._claim(new["current_txid"] == 1 and not new["attempts"], f"the first record is {new}")
            return
        self._claim(new["incarnation"] == old["incarnation"], "another incarnation took over the record")
        current, following = old["current_txid"], new["current_txid"]
        self._claim(following in (current, current + 1), f"the current txid goes from {current} to {following}")
        if following == current + 1:
            self._on_advance(current, old, new, decided, writer)
        begun = [txid for txid, attempt_id in new["attempts"].items() if old["attempts"].get(txid) != attempt_id]
        self._claim(len(begun) <= 1, f"one write began {begun}")
        if begun and following != current:
            self._world.reached("a begin is stored by an advance")
        for txid in begun:
            self._on_begin(int(txid), new)
        kept = {int(txid) for txid in new["attempts"]}
        self._claim(all(txid >= following for txid in kept), f"attempts of {sorted(kept)} are kept at {following}")
        lost = {int(txid) for txid in old["attempts"]} - kept - {current}
        self._claim(not lost, f"the attempts of {lost} are forgotten")

    # --- rollbacks -----------------------------------------------------------------------------

    def _on_intent(self, writer: Any, data: bytes | None) -> None:
        """A rollback begins, or has ended."""
        self._claim(writer is self.leader, f"{writer} begins or ends a rollback, and {self.leader} leads")
        if data is None:
            assert self.intent is not None and self.record is not None
            wanted = self.intent["incarnation"]
            self._claim(self.record["incarnation"] == wanted, f"the rollback to {wanted} ends, the record is before it")
        self.intent = parsed(data) if data else None
        if data is not None:
            self.on_rollback_begun()

    def on_taken_back(self, table: str, txids: list[int]) -> None:
        """A table has the rows of an earlier transaction again."""
        self._claim(self.intent is not None, f"{table} is taken back to {txids}, and no rollback was begun")
        assert self.intent is not None
        wanted = sorted(txid for txid in self._decided if txid <= self.intent["last"]["txid"])
        self._claim(txids == wanted, f"{table} is taken back to {txids}, not to {wanted}")
        self._tables[table] = txids

    def _on_rollback(self, record: dict[str, Any], decided: Any, own: Mapping[str, bytes | None]) -> None:
        """The group's record is of an earlier transaction again: of what was taken back only its numbers stay."""
        self._claim(self.intent is not None, "another incarnation took over the record")
        assert self.intent is not None
        last, after = self.intent["last"], self.intent["incarnation"]
        self._claim(record["incarnation"] == after, f"the record is of {record['incarnation']}, begun was {after}")
        self._claim(record["current_txid"] == last["txid"] + 1, f"behind a rollback to {last} the record is {record}")
        self._claim(decided is None and not record["attempts"], f"behind a rollback there is {decided}, {record}")
        attempt = (last["txid"], last["attempt_id"])
        self._claim(self._decided[last["txid"]] == (attempt, last["digest"]), f"{last} was not decided")
        self._claim(record["last"] == record["last_published"] == last, f"behind a rollback to {last}: {record}")
        wanted = sorted(txid for txid in self._decided if txid <= last["txid"])
        for name, txids in self._tables.items():
            self._claim(txids == wanted, f"behind a rollback table {name} has {txids}, not {wanted}")
        self._taken_back |= {one for txid, one in self._advanced.items() if txid > last["txid"]}
        for known in (self._decided, self._advanced, self._advanced_by, self._acknowledged):
            for txid in [txid for txid in known if txid > last["txid"]]:
                del known[txid]  # type: ignore[attr-defined]
        for told in [told for told in self._told if told[0] > last["txid"]]:
            del self._told[told]
        self._pins_behind_a_rollback(attempt, own)
        self._world.tell("rolled back to", *attempt)

    def _pins_behind_a_rollback(self, attempt: Attempt, own: Mapping[str, bytes | None]) -> None:
        for path, data in own.items():
            parts = path[len(ROOT) + 1 :].split("/")
            if len(parts) == 3 and parts[1] == "coordinator":
                key = (parts[0], int(parts[2]))
                if data:
                    self._pins[key] = parsed(data)["value"]
                else:
                    self._pins.pop(key, None)
            elif len(parts) == 3 and parts[1] == "partitions":
                stored = self._opaque.setdefault(parts[0], set())
                (stored.add if data else stored.discard)(int(parts[2]))
        for name, source in self._sources.items():
            if source.kind == "transactional":
                pins = {txid: value for (of, txid), value in self._pins.items() if of == name}
                wanted = {attempt[0]: self._pins_of[attempt][name]}
                self._claim(pins == wanted, f"behind a rollback to {attempt} {name} has the pins {pins}, not {wanted}")

    # --- attempts ------------------------------------------------------------------------------

    def _on_begin(self, txid: int, record: dict[str, Any]) -> None:
        current, attempt_id = record["current_txid"], record["attempts"][str(txid)]
        attempt = (txid, attempt_id)
        self._world.tell("begun", txid, attempt_id)
        self._claim(
            attempt_id > self._greatest.get(txid, -1),
            f"attempt id used again: {txid}:{attempt_id} after {self._greatest.get(txid)}",
        )
        self._greatest[txid] = attempt_id
        self._claim(current <= txid < current + self._window, f"{txid} begins while {current} is current")
        self._claim(txid not in self._decided, f"{txid}:{attempt_id} begins, but {self._decided.get(txid)} is decided")
        parent = record["parents"][str(txid)]
        if txid == current:
            last = record["last"]
            wanted = last["attempt_id"] if last else None
        else:
            self._claim(str(txid - 1) in record["attempts"], f"{txid} begins before {txid - 1}")
            wanted = record["attempts"][str(txid - 1)]
        self._claim(parent == wanted, f"{txid}:{attempt_id} builds on attempt {parent}, not on {wanted}")
        self._pins_of[attempt] = {name: value for (name, of), value in self._pins.items() if of == txid}

    def _on_decided(self, record: dict[str, Any], decided: Any, writer: Any) -> None:
        if decided is None:
            txid = self.decided["txid"]
            self._claim(txid in self._advanced, f"the decision of {txid} is withdrawn")
            return
        attempt = (decided["txid"], decided["attempt_id"])
        self._world.tell("decided", *attempt)
        self._claim(self.decided is None, f"{attempt} is decided beside {self.decided}")
        self._claim(attempt[0] == record["current_txid"], f"{attempt} is decided at {record['current_txid']}")
        self._claim(attempt[1] == record["attempts"].get(str(attempt[0])), f"{attempt} was not begun last: {record}")
        self._claim(attempt in self._emitted, f"{attempt} is decided before it was emitted")
        last = record["last"]["attempt_id"] if record["last"] else None
        self._claim(record["parents"][str(attempt[0])] == last, f"{attempt} is decided on another parent than {last}")
        self._claim(attempt[0] not in self._decided, f"{attempt} is decided after {self._decided.get(attempt[0])}")
        if attempt in self._looked_up:
            read, wanted = self._looked_up[attempt], self._rows_before(attempt[0])
            self._claim(read == wanted, f"{attempt} is decided upon {read} of a local copy, its state was {wanted}")
        self._decided[attempt[0]] = (attempt, decided["sha256"])
        self._decided_by = writer

    def on_look_up(self, attempt: Any, content: Any) -> None:
        """What an attempt has read of a state in a local copy: (txid, rows) of each transaction that the copy has."""
        self._looked_up[tuple(attempt)] = [(txid, [tuple(row) for row in rows]) for txid, rows in content]

    def _rows_before(self, txid: int) -> list[tuple[int, list[Any]]]:
        """The rows of each transaction that was decided before one."""
        attempts = {known: attempt for known, (attempt, _) in sorted(self._decided.items()) if known < txid}
        return [
            (known, [tuple(row) for found in self._emitted[attempt].values() for row in found])
            for known, attempt in attempts.items()
        ]

    def _on_advance(self, txid: int, old: Any, new: Any, decided: Any, writer: Any) -> None:
        last = new["last"]
        self._claim(last and last["txid"] == txid, f"{txid} advances, but the last is {last}")
        attempt = (txid, last["attempt_id"])
        self._world.tell("advanced", *attempt)
        self._advanced[txid], self._advanced_by[txid] = attempt, writer
        self.advanced_now = True
        self._claim(decided is None, f"{txid} advances, and a decision stays: {decided}")
        if txid in self._decided:
            self._claim(self._decided[txid][0] == attempt, f"{attempt} advances, {self._decided[txid]} is decided")
            for name, txids in self._tables.items():
                self._claim(txid in txids, f"{attempt} advances before it is in table {name}: {txids}")
            waits = any(self._kind(name) == "queue" and rows for name, rows in self._emitted[attempt].items())
            self._claim(
                not waits or self._acknowledged.get(txid) == attempt, f"{attempt} advances before its spout has heard"
            )
            if self._decided_by is not writer:
                self._world.reached("a decision is finished by another process")
            if new["last_published"] != last:
                self._claim(False, f"{attempt} is published, but the last published is {new['last_published']}")
        else:
            self._claim(attempt[1] <= self._greatest.get(txid, -1), f"{attempt} advances and never began")
            rows = [row for found in self._emitted.get(attempt, {}).values() for row in found]
            self._claim(attempt in self._emitted and not rows, f"{attempt} advances as empty with {rows}")
            self._world.reached("an empty batch advances")
        if txid > 1:
            untold = self._without_sparks_log(txid - 1)
            self._claim(not untold, f"{txid} advances, and success of {txid - 1} was not told to {untold}")

    # --- sources and tables --------------------------------------------------------------------

    def _kind(self, name: str) -> str:
        return self._sources[name].kind

    def on_emit(self, process: Any, attempt: Any, emitted: dict[str, list[Any]]) -> None:
        """All rows of an attempt, by stream, as the runner made them from the metadata it was given."""
        key = tuple(attempt)
        self._world.tell("emitted", *key, sum(len(rows) for rows in emitted.values()))
        self._claim(key in self._pins_of, f"{key} is emitted before its begin is stored")
        self._claim(key not in self._emitted, f"{key} is emitted twice: the attempt id is not its own")
        for name, rows in emitted.items():
            if self._kind(name) == "transactional":
                pinned = self._pins_of[key].get(name)
                wanted = None if pinned is None else [(name, "p0", offset) for offset in range(*pinned)]
                self._claim(rows == wanted, f"{name} emits {rows} for {key}, pinned is {pinned}")
            earlier = [
                found[name] for (txid, _), found in self._emitted.items() if txid == key[0] and found[name] != rows
            ]
            if earlier and self._kind(name) == "opaque":
                self._world.reached("an opaque replay holds other rows")
        self._emitted[key] = emitted

    def on_commit(
        self,
        process: Any,
        table: str,
        txid: int,
        control: str,
        rows: Any,
        before: tuple[tuple[int, Any], ...],
        of_copy: bool,
    ) -> None:
        """A table, or the older copy that somebody has put in its place, has a new version with the rows of a txid."""
        stored = parsed(control)
        attempt = (stored["txid"], stored["attempt_id"])
        self._claim(stored["txid"] == txid, f"{table}: SetTransaction {txid}, control record {attempt}")
        self._claim(txid in self._decided, f"{table} publishes {attempt}, which is not decided")
        self._claim(
            self._decided[txid] == (attempt, stored["digest"]),
            f"{table} publishes {attempt}, decided is {self._decided[txid]}",
        )
        epochs = self._epochs[process]
        self._claim(stored["epoch"] in epochs, f"{table} has epoch {stored['epoch']} of {process}, which had {epochs}")
        # A deposed coordinator may bring an older copy up to where the table was.
        current = self.record["current_txid"]
        self._claim(current == txid or of_copy and txid < current, f"{table} publishes {txid} at {current}")
        wanted = [known for known in sorted(self._decided) if known < txid]
        self._claim([known for known, _ in before] == wanted, f"{table} gets {txid} on {before}, not on {wanted}")
        emitted = [tuple(row) for found in self._emitted[attempt].values() for row in found]
        self._claim([tuple(row) for row in rows] == emitted, f"{table} gets {rows} of {attempt}, emitted {emitted}")
        self._tables[table].append(txid)

    def on_spout_commit(self, attempt: Any, name: str, ids: Any) -> None:
        key = tuple(attempt)
        self._world.tell("spout commit", *key)
        decided = self._decided.get(key[0])
        self._claim(decided and decided[0] == key, f"a spout is told to commit {key}, decided is {decided}")
        for table, txids in self._tables.items():
            self._claim(key[0] in txids, f"a spout is told to commit {key} before table {table} has it")
        rows = [(name, "p0", offset) for offset in ids]
        self._claim(self._emitted[key][name] == rows, f"{key} commits {ids} of {name}, emitted {self._emitted[key]}")
        if key[0] in self._acknowledged:
            self._world.reached("a spout's commit is told again")
        self._acknowledged[key[0]] = key

    def on_success(self, process: Any, name: str, attempt: Any) -> None:
        key = tuple(attempt)
        self._world.tell("success", name, *key)
        if key in self._taken_back:
            self._world.reached("success is told of what a rollback has taken back")
            return
        self._claim(self._advanced.get(key[0]) == key, f"success of {key} is told, advanced is {self._advanced}")
        if self._told[key[0], name]:
            self._world.reached("success is told again")
        elif self._advanced_by[key[0]] is not process:
            self._world.reached("success is told by another process than the one that advanced")
        self._told[key[0], name] += 1
        self.on_progress()

    def _without_sparks_log(self, txid: int) -> list[str]:
        return [name for name in self._sources if not self._told[txid, name]]

    def on_open(self, process: Any) -> None:
        """A coordinator opens the spouts of its group, to begin transactions."""
        amid = self.leads(process) and self.intent is not None
        self._claim(not amid, f"{process} leads amid a rollback: {self.intent}")
        pending = self.leads(process) and self.decided is not None
        self._claim(not pending, f"{process} opens its spouts while a decision is pending: {self.decided}")

    def on_serves(self, process: Any) -> None:
        """A coordinator answers requests from now on; it may have decided something by then."""
        pending = self.leads(process) and self.decided is not None and self._decided_by is not process
        self._claim(not pending, f"{process} answers requests while a decision is pending: {self.decided}")

    def on_upkeep(self, txid: int) -> None:
        """A coordinator lets a transaction be merged into the plain tables."""
        known = txid in self._advanced or any(txid == taken for taken, _ in self._taken_back)
        self._claim(known, f"{txid} is merged, advanced are {sorted(self._advanced)}")

    def on_stopped(self, process: Any) -> None:
        """A coordinator has stopped, as it was asked to."""
        unfinished = self.leads(process) and self.decided is not None
        self._claim(not unfinished, f"{process} stopped, and its decision is not finished: {self.decided}")

    def on_gave_up(self, process: Any, txid: int) -> None:
        """A coordinator has ended since one transaction failed too often."""
        if self.leads(process):
            self._claim(self.decided is None, f"{process} gave up, and its decision is not finished: {self.decided}")
            current = self.record["current_txid"]
            self._claim(txid == current, f"{process} gave up for {txid}, and {current} is not finished")

    # --- the end -------------------------------------------------------------------------------

    def committed(self) -> bool:
        """Whether every row of the sources is in every table, and the last success was told."""
        if self.record is None or self.decided is not None:
            return False
        last = self.record["current_txid"] - 1
        if last and self._without_sparks_log(last):
            return False
        batches = [self._emitted[attempt] for attempt, _ in self._decided.values()]
        done = {row for batch in batches for rows in batch.values() for row in rows}
        return all(row in done for source in self._sources.values() for row in source.all_rows())

    def at_the_end(self, tables: Mapping[str, Any], znodes: list[str]) -> None:
        """Once everything has committed and every process has stopped."""
        wanted = Counter(row for source in self._sources.values() for row in source.all_rows())
        for name, table in tables.items():
            # Everybody may have been asked to stop before a table was made, where the sources have nothing.
            content = table.newest.content if table.versions else ()
            found = Counter(tuple(row) for _, rows in content for row in rows)
            self._claim(found == wanted, f"{name}: lost {wanted - found}, more than once {found - wanted}")
            txids = [txid for txid, _ in content]
            self._claim(txids == sorted(self._decided), f"{name} has {txids}, decided were {sorted(self._decided)}")
        last = self.record["current_txid"] - 1
        self._claim(sorted(self._advanced) == list(range(1, last + 1)), f"advanced were {sorted(self._advanced)}")
        untold = [txid for txid in self._advanced if self._without_sparks_log(txid)]
        self._claim(not untold, f"success of {untold} was never told")
        for source in self._sources.values():
            if source.kind == "queue":
                self._claim(len(source.acknowledged) == source.end["p0"], f"{source.acknowledged} are acknowledged")
        bound = 16 + len(self._sources) * (self._window + 8)
        self._claim(len(znodes) <= bound, f"{len(znodes)} znodes are left: {znodes}")
        self._claim(f"{ROOT}/live" not in znodes, "everybody has stopped, and the live znode is there")
