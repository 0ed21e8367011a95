"""Defects to plant in the production code, in this process: one text of one function is replaced by another.

The simulator must find each of them. A text that is not there any more is an
error: plant the defect again in the new code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock


class Edit(NamedTuple):
    """``where``: module:function, or module:Class.function."""

    where: str
    old: str
    new: str


STORE = "trident.coordinators.group_store:GroupStore."
DRIVER = "trident.coordinators.driver:GroupDriver."
SUPERVISOR = "trident.coordinators.supervisor:Supervisor."
RECOVERY = "trident.coordinators.supervisor:Recovery."
ZOOKEEPER = "trident.coordinators.zookeeper:ZooKeeper."
COPY = "trident.states.keyed.state_copy:StateCopy."

PLANTED: dict[str, tuple[Edit, ...]] = {
    "no fence in multis": (Edit(STORE + "_write", "self._fence.check_op(request)", "pass"),),
    "stop leaves a decision behind": (
        Edit(
            "trident.coordinators.master:_stop_requested",
            "live.stage >= Stage.DECIDING",
            "live.stage > Stage.ADVANCING",
        ),
    ),
    "gives up before the earlier ones are finished": (
        Edit(
            "trident.coordinators.master:_finish",
            "if state.live or state.mode.ended:",
            "if state.capped and state.mode is Mode.RUNNING:\n        return _end(state, Mode.GAVE_UP)\n"
            "    if state.live or state.mode.ended:",
        ),
    ),
    "a refused multi is not noticed": (Edit(ZOOKEEPER + "multi", "raise_refusal(ops, results)", "pass"),),
    "a write is repeated after a lost connection": (
        Edit(
            ZOOKEEPER + "multi",
            "results = self._answer(request.commit_async(), session_number)",
            "results = KazooRetry(max_tries=-1, sleep_func=self._threads.sleep)("
            "lambda: self._answer(request.commit_async(), self._session_number))",
        ),
    ),
    "a lost answer counts as done": (
        Edit(
            STORE + "_has_happened",
            "if znode_version == self._znode_version:\n        return False",
            "if znode_version == self._znode_version:\n        return True",
        ),
    ),
    "a lost answer counts as not done": (
        Edit(
            STORE + "_has_happened",
            "and found[0] == data:\n        return True",
            "and found[0] == data:\n        self._znode_version += 1\n        return False",
        ),
    ),
    "a lost answer is looked up at a server that lags": (Edit(ZOOKEEPER + "recover", "self.sync(path)", "pass"),),
    "the control record is not checked": (
        Edit("trident.states.publishing.publishing:Publisher._publish_table", "if not expected:", "if False:"),
    ),
    "a published table is not recognised": (
        Edit(
            "trident.states.publishing.publishing:Publisher._publish_table",
            "if control.is_of(decision):",
            "if False:",
        ),
    ),
    "attempt ids begin again after a restart": (
        Edit(DRIVER + "start", "dict(record.attempts)", "{}"),
        Edit(STORE + "_check_begin", "if attempt.attempt_id <= greatest:", "if False:"),
    ),
    "advance before publish": (
        Edit(
            DRIVER + "_commit",
            "work.published = self._committer.publish(decision, self._store.record)",
            "work.published = Published()",
        ),
    ),
    "success before advance": (
        Edit(
            DRIVER + "_advance",
            "def advance() -> None:",
            "self._success_call = self._success_pool.submit(self._success, command.attempt)\n\n"
            "    def advance() -> None:",
        ),
    ),
    "the success before is not waited for": (Edit(DRIVER + "_advance", "self._wait_success()", "pass"),),
    "success of the transaction before is not told at a recovery": (
        Edit("trident.spouts.host:RecoverySpouts.success", "if attempt.txid < self._finishing:", "if False:"),
    ),
    "metadata is not pinned": (
        Edit(
            STORE + "_begun",
            "pinned[tx_id] = states.put_in(changes, attempt.txid, metadata)",
            "pinned[tx_id] = metadata",
        ),
    ),
    "a pin is not used again": (
        Edit(STORE + "_begun", "if states.has(attempt.txid) and not begin.repin:", "if False:"),
    ),
    "opaque metadata is not stored when it advances": (
        Edit(DRIVER + "_opaque", "return {tx_id: found for tx_id, found in changed.items() if found}", "return {}"),
    ),
    "opaque metadata of an attempt that failed is the base": (
        Edit(
            "tests.simulator.sources:SimExecutor._read_on",
            "base = self._positions.get(context.parent) if context.parent is not None else None",
            "base = list(self._positions.values())[-1] if self._positions else None",
        ),
    ),
    "the decision is forgotten at a restart": (
        Edit(
            STORE + "_read_everything",
            "self._decision = decode(self._decided_path, decided[0], Decision) if decided else None",
            "self._decision = None",
        ),
    ),
    "the committer spout is told before the tables": (
        Edit(
            DRIVER + "_commit",
            "def publish() -> None:",
            "self._spouts.commit(command.attempt, {name: s['commit_data'] for name, s in work.processed.spouts.items()"
            " if s.get('commit_data') is not None} if work.processed else {})\n\n    def publish() -> None:",
        ),
    ),
    "a failure is heard after the decision": (
        Edit(
            "trident.coordinators.master:_failed",
            "if live is None or live.stage >= Stage.DECIDING:",
            "if live is None:",
        ),
        Edit(
            DRIVER + "_until_done",
            "failures += 1\n",
            "failures += 1\n            mine = [a for a, w in self._work.items() if w is work]\n"
            "            self.post(master.Failed(mine[0]))\n",
        ),
    ),
    "the leader is replaced without bumping the fence": (
        Edit(
            "trident.coordinators.leadership:Leadership._take",
            "ops.append(SetData(path, data, leader[1]) if leader else Create(path, data))",
            "ops.extend([] if leader else [Create(path, data)])",
        ),
        Edit("trident.coordinators.leadership:Leadership._take", "leader[1] + 1 if leader", "leader[1] if leader"),
    ),
    "what a deposed coordinator reads in two pieces counts as corrupt": (
        Edit(STORE + "_check_decision", "self._fence.verify(self._zk)", "pass"),
    ),
    "a deposed coordinator without its manifest halts": (
        Edit(
            "trident.states.publishing.publishing:Publisher.publish",
            "self._tables.check_fence()\n        raise\n",
            "raise\n",
        ),
    ),
    "old pins stay": (Edit(STORE + "_cleaned_pins", "self._pins[tx_id].cleanup_before_in(changes, txid)", "pass"),),
    "an attempt begins before its place is free": (
        Edit(DRIVER + "_begin", "if attempt.txid > self._window_end:", "if False:"),
    ),
    "a begin that comes too late for its advance is lost": (
        Edit(DRIVER + "_advance", "filter(None, (begin, late))", "filter(None, (begin,))"),
    ),
    # The supervisor's order of calls.
    "a group is driven with its decision pending": (Edit(RECOVERY + "open", "if decision is not None:", "if False:"),),
    "the tables are opened before the decision is finished": (
        Edit(
            RECOVERY + "open",
            "if decision is not None:\n        self._finish_decision(store, opening)\n"
            "    opening.committer.open(store.record)",
            "opening.committer.open(store.record)\n"
            "    if decision is not None:\n        self._finish_decision(store, opening)",
        ),
    ),
    "a recovery goes on although its lease was lost": (
        Edit(
            RECOVERY + "_finish_decision",
            "if self.lease.lost.is_set() or driver.state.mode is not Mode.STOPPED:",
            "if False:",
        ),
    ),
    "a deposed coordinator that sees its successor's tables halts": (
        Edit(RECOVERY + "open", "self.lease.verify()", "pass"),
    ),
    "tables are published under the first epoch": (
        Edit(RECOVERY + "open", "self.term, fence.epoch,", "self.term, 1,"),
    ),
    "requests are answered before the groups are open": (
        Edit(SUPERVISOR + "_lead", "recovery = Recovery(", "self._listener.serves({})\n    recovery = Recovery("),
    ),
    "the watch does not notice that the lease is lost": (
        Edit(SUPERVISOR + "_watch", "if lease.lost.is_set():", "if False:"),
    ),
    "a group is not told that the connection is back": (
        Edit(
            SUPERVISOR + "_watch",
            "self._post(master.Suspended() if suspended else master.Reconnected())",
            "suspended and self._post(master.Suspended())",
        ),
    ),
    "the lease is given back while its threads work": (
        Edit(SUPERVISOR + "_close", "group.driver.wait()\n        group.driver.close()", "pass"),
    ),
    "the lease is not given back": (Edit(SUPERVISOR + "_hold", "lease.release()", "pass"),),
    "a deposed coordinator ends instead of contending again": (
        Edit(SUPERVISOR + "_hold", "except _DEPOSING as lost", "except LeaseLost as lost"),
    ),
    # Hand-overs.
    "another standby takes the lease that a hand-over gives": (
        Edit(
            "trident.coordinators.leadership:Leadership._leaves",
            "return now - self._left_to[1] < _LEAVE_SECS",
            "return False",
        ),
    ),
    "a hand-over outlives the leader that it was made for": (
        Edit(
            "trident.coordinators.handing_over:is_for",
            "dict(request.epochs) == dict(epochs) and ",
            "",
        ),
    ),
    # Local copies of states.
    "a copy is as of whichever transaction": (
        Edit(COPY + "_catch_up_to", "if held.txid == txid and commit in (None, held.commit):", "if True:"),
    ),
    "a copy of another history is gone on with": (
        Edit(
            COPY + "_is_followed",
            "return commit_of(decode_control(path, control)) == held.commit",
            "return True",
        ),
    ),
    "a host takes its view of the log for the whole": (
        Edit(COPY + "_mark", "if commit not in (None, mark.commit):", "if False:"),
        Edit(COPY + "leave", "self._copy = self._log = None", "self._copy = None"),
    ),
}

ROLLBACK = "trident.time_travel.rollback:"
# Found where an operator rolls back.
OF_ROLLBACKS: dict[str, tuple[Edit, ...]] = {
    "attempt ids begin again behind a rollback": (Edit(ROLLBACK + "record_after", "used=intent.used", "used=None"),),
    "positions of an attempt that was not decided": (
        Edit(
            ROLLBACK + "decided_manifest",
            'names = f"{last.txid}-{last.attempt_id}"',
            'names = f"{last.txid}"',
        ),
        Edit(ROLLBACK + "decided_manifest", "if hashlib.sha256(data).hexdigest() == last.digest:", "if data:"),
    ),
    "a table is left out of a rollback": (
        Edit(ROLLBACK + "_Rollback.run", "for table in tables]", "for table in tables[1:]]"),
    ),
    "the app of publications stays the same behind a rollback": (
        Edit(
            "trident.states.publishing.group_tables:GroupTables.__init__",
            'f"trident/{of.topology}/{of.group}/{of.incarnation}"',
            'f"trident/{of.topology}/{of.group}"',
        ),
    ),
    "a process leads amid a rollback": (
        Edit(
            "trident.coordinators.registration:Registration.ensure",
            "refuse_unfinished_rollback(self._zk, self._topology)",
            "pass",
        ),
        Edit(
            "trident.coordinators.registration:Registration.check",
            "refuse_unfinished_rollback(self._zk, self._topology)",
            "pass",
        ),
    ),
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The defect is in the production code meanwhile."""
    texts: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for where, old, new in {**PLANTED, **OF_ROLLBACKS}[name]:
            owner, attribute, function = _find(where)
            text = texts.get(where) or textwrap.dedent(inspect.getsource(function))
            if text.count(old) < 1:
                raise AssertionError(f"{name!r} cannot be planted: {where} has no {old!r}")
            texts[where] = text = text.replace(old, new)
            stack.enter_context(mock.patch.object(owner, attribute, _compiled(text, function)))
            _also_where_it_is_kept(stack, owner, function, getattr(owner, attribute))
        yield


def _find(where: str) -> tuple[Any, str, Any]:
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, attribute = path.split(".")
    for name in outer:
        owner = getattr(owner, name)
    found = inspect.getattr_static(owner, attribute)
    return owner, attribute, getattr(found, "__planted_from__", found)


def _compiled(text: str, function: Any) -> Any:
    names: dict[str, Any] = {}
    exec(
        compile("from __future__ import annotations\n" + text, function.__code__.co_filename, "exec"),
        function.__globals__,
        names,
    )
    made = names[function.__name__]
    made.__planted_from__ = function
    return made


def _also_where_it_is_kept(stack: contextlib.ExitStack, owner: Any, before: Any, after: Any) -> None:
    """The coordinator finds its handlers in a table."""
    for event, handler in getattr(owner, "_HANDLERS", {}).items():
        if getattr(handler, "__planted_from__", handler) is before:
            stack.enter_context(mock.patch.dict(owner._HANDLERS, {event: after}))
            return
