"""A naive coordinator for spouts that are told at commit, which fails, kills and forgets at random.

It keeps what must survive in plain fields (ids, pins, the decision, the
table), and plays everything that threads and processes could do to a spout:
emits in any order, attempts that die and do not know it, processes that are
killed or deposed and go on. It shares no code with the production coordinator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trident.coordinators.errors import Deposed, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import Commits, Emitted, Prepares, SpoutContext

IN_FLIGHT = 3


@dataclass
class Life:
    """One process: its spout's parts and what it believes to be in flight."""

    coordinator: Any
    emitter: Any
    live: dict[int, TransactionAttempt] = field(default_factory=dict)
    emitted: dict[TransactionAttempt, Emitted] = field(default_factory=dict)
    prepared: dict[TransactionAttempt, list] = field(default_factory=dict)  # with the rows that were staged
    dead: list[TransactionAttempt] = field(default_factory=list)  # their threads may still run


class Group:
    """Runs a spout's transactions one step at a time.

    Args:
        make: makes the spout, once per process.
        folder: for the spout's state.
        rng: decides.
        cancels: whether failed attempts are told to the emitter, when it wants to hear.
        rows_of: the rows of an emitted batch.

    Attributes:
        spark: the session of the contexts.
        meanwhile: what others do while no process leads; called between the steps of a recovery.
    """

    spark: Any = None

    def __init__(
        self,
        make: Callable[[], Any],
        folder: Path,
        rng: random.Random,
        cancels: bool,
        rows_of: Callable[[Any], list] = list,
    ) -> None:
        self.make, self.folder, self.rng, self.cancels, self.rows_of = make, folder, rng, cancels, rows_of
        self.table: list[tuple[int, Any]] = []  # (txid, row), of published transactions
        self.current, self.begun_to = 1, 0
        self.attempts: dict[int, int] = {}
        self.pins: dict[int, Any] = {}
        self.decided: tuple[TransactionAttempt, list, Any] | None = None
        self.decisions: list[tuple[TransactionAttempt, Any]] = []
        self.published = 0  # the greatest txid
        self.last: TransactionAttempt | None = None  # advanced
        self.epoch = 0
        self.zombies: list[Life] = []
        self.meanwhile: Callable[[], Any] = lambda: None
        self.life = self._start()

    def context(self) -> SpoutContext:
        return SpoutContext(self.spark, "t", "s", self.folder, "life", {"epoch": self.epoch})

    def _start(self) -> Life:
        self.epoch += 1
        self.meanwhile()
        if self.decided is not None:
            # As RecoverySpouts: parts of their own, closed before the others are made.
            emitter = self._parts(self.make(), self.context()).emitter
            self._publish()
            assert isinstance(emitter, Commits)
            self.meanwhile()
            emitter.commit(self.decided[0], self.decided[2])
            emitter.close()
            self._advance()
        life = self._parts(self.make(), self.context())
        if self.last is not None:  # told again, since nobody knows whether it was heard
            life.coordinator.success(self.last.txid)
            life.emitter.success(self.last)
        self.meanwhile()
        return life

    def _parts(self, spout: Any, context: SpoutContext) -> Life:
        return Life(spout.get_coordinator(context), spout.get_emitter(context))

    # --- steps; each returns whether there was something to do --------------------------------

    def begin(self) -> bool:
        txid = self.current + len(self.life.live)
        if len(self.life.live) >= IN_FLIGHT or self.decided is not None and self.decided[0].txid == txid:
            return False
        if txid > self.begun_to and not self.life.coordinator.is_ready(txid):
            return False
        earlier = [known for known in self.pins if known < txid]
        previous = self.pins[max(earlier)] if earlier else None
        self.pins[txid] = self.life.coordinator.initialize_transaction(txid, previous, self.pins.get(txid))
        attempt = TransactionAttempt(txid, self.attempts.get(txid, -1) + 1)
        self.attempts[txid] = attempt.attempt_id
        self.begun_to = max(self.begun_to, txid)
        self.life.live[txid] = attempt
        return True

    def emit(self) -> bool:
        return self._emit(self.life, list(self.life.live.values()))

    def _emit(self, life: Life, candidates: list[TransactionAttempt]) -> bool:
        waiting = [attempt for attempt in candidates if attempt not in life.emitted]
        if not waiting:
            return False
        attempt = self.rng.choice(waiting)  # threads come in any order
        life.emitted[attempt] = life.emitter.emit_batch(attempt, self.pins[attempt.txid])
        return True

    def prepare(self) -> bool:
        return self._prepare(self.life, list(self.life.live.values()))

    def _prepare(self, life: Life, candidates: list[TransactionAttempt]) -> bool:
        waiting = [found for found in candidates if found in life.emitted and found not in life.prepared]
        if not waiting:
            return False
        attempt = self.rng.choice(waiting)
        try:
            staged = self.rows_of(life.emitted[attempt].data)
            if isinstance(life.emitter, Prepares):
                life.emitter.prepare(attempt)
            life.prepared[attempt] = staged
        except (SourceError, FileNotFoundError):
            if life is self.life and attempt in life.live.values():
                self.fail(attempt.txid)
        return True

    def decide(self) -> bool:
        attempt = self.life.live.get(self.current)
        if self.decided is not None or attempt is None or attempt not in self.life.prepared:
            return False
        emitted, rows = self.life.emitted[attempt], self.life.prepared[attempt]
        if emitted.commit_data is None:
            assert not rows
            self.last = attempt
            self.current += 1
            self._success(attempt)
        else:
            self.decided = (attempt, rows, emitted.commit_data)
            self.decisions.append((attempt, emitted.commit_data))
        return True

    def finish(self) -> bool:
        """One of the steps after the decision."""
        if self.decided is None:
            return False
        attempt, _, data = self.decided
        self._publish()
        for _ in range(self.rng.choice([1, 1, 2])):
            self.life.emitter.commit(attempt, data)
        self._advance()
        self._success(attempt)
        return True

    def commit_only(self) -> bool:
        """The commit's answer is lost, or the process dies right after it."""
        if self.decided is None:
            return False
        self._publish()
        self.life.emitter.commit(self.decided[0], self.decided[2])
        return True

    def _publish(self) -> None:
        assert self.decided is not None
        attempt, rows, _ = self.decided
        if self.published < attempt.txid:
            self.table += [(attempt.txid, row) for row in rows]
            self.published = attempt.txid

    def _advance(self) -> None:
        assert self.decided is not None and self.decided[0].txid == self.current
        self.last, self.decided = self.decided[0], None
        self.current += 1

    def _success(self, attempt: TransactionAttempt) -> None:
        self.life.live.pop(attempt.txid)
        self.life.coordinator.success(attempt.txid)
        self.life.emitter.success(attempt)

    def fail(self, txid: int | None = None) -> bool:
        """An attempt that is not decided dies, and with it all later ones."""
        undecided = [known for known in self.life.live if self.decided is None or known != self.decided[0].txid]
        if not undecided:
            return False
        first = txid if txid is not None else self.rng.choice(undecided)
        for known in [known for known in self.life.live if known >= first]:
            attempt = self.life.live.pop(known)
            self.life.dead.append(attempt)
            if self.cancels and self.rng.random() < 0.7 and hasattr(self.life.emitter, "cancel"):
                self.life.emitter.cancel(attempt)
        return True

    def late_thread(self) -> bool:
        """A thread of a dead attempt of this process goes on."""
        try:
            return self._emit(self.life, self.life.dead) or self._prepare(self.life, self.life.dead)
        except SourceError:
            return True

    def kill(self) -> bool:
        """The process dies, or is deposed and does not know it yet."""
        self.zombies = [*self.zombies[-2:], self.life]
        self.life = self._start()
        return True

    def stop(self) -> bool:
        """The process ends in order: nothing new is decided, the emitter is closed."""
        self.life.emitter.close()
        self.life.coordinator.close()
        return self.kill()

    def zombie(self) -> bool:
        """A process that was deposed goes on with what it was doing."""
        if not self.zombies:
            return False
        life = self.rng.choice(self.zombies)
        attempts = list(life.live.values())
        try:
            match self.rng.randrange(5):
                case 0:
                    return self._emit(life, attempts)
                case 1:
                    return self._prepare(life, attempts)
                case 2:
                    life.coordinator.is_ready(max(life.live, default=0) + 1)
                case 3:
                    for attempt, data in self.decisions[-2:]:
                        if attempt.txid <= self.published:
                            life.emitter.commit(attempt, data)
                case 4:
                    life.emitter.close()
        except (Deposed, SourceError):
            pass
        return True

    def drain(self, limit: int = 200) -> None:
        """Nothing fails any more, until nothing is left to do."""
        for _ in range(limit):
            while self.begin():
                pass
            if not self.life.live and self.decided is None:
                return
            while self.emit() or self.prepare():
                pass
            if not self.decide() and self.decided is None:
                continue
            if self.decided is not None:
                self.finish()
        raise AssertionError("the source never runs dry")
