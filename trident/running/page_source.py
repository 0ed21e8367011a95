"""The live page of a topology that runs in this process: its status, states and letters, as the page asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import NotLeading, TridentError
from trident.messages.dead_letters import DeadLetter, DeadLetterReader
from trident.planning.explain import plan_graph
from trident.planning.groups import GroupPlan
from trident.planning.nodes import TopologyGraph
from trident.running.reading import get_running
from trident.running.status import waiting_standbys
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place
from trident.states.history.recorded import PastLeaderships, last_transactions
from trident.states.outside.outbox import RefusedRequestReader
from trident.watching.live_feed import TRANSACTIONS, LiveFeed, before, past_records
from trident.watching.live_page import LIVE_SECS, LivePage, Recent, StateSizes, key_of_texts, refresh_secs, shown_value

if TYPE_CHECKING:
    from starlette.routing import Route

    from trident.running.reporting import Reporter

log = logging.getLogger("trident.query")
# It reads what the table of transactions has got since, and manifests that are behind it.
_SELDOM_SECS = 30.0
_NO_TABLE = "not in a table of the warehouse: its size is not known here"


def page_routes(
    reporter: Reporter, graph: TopologyGraph, plans: Sequence[GroupPlan], warehouse: Place
) -> tuple[Route, ...]:
    """The paths of the live page of a query; its feed is told the reporter's events from here on."""
    feed = LiveFeed()
    reporter.watchers.add(feed)
    return LivePage(RunningSource(reporter, feed, graph, plans, warehouse)).routes()


class RunningSource:
    """``trident.watching.live_page.PageSource`` of a query of this process, which may lead or wait."""

    read_only = ""
    live_secs = LIVE_SECS

    def __init__(
        self,
        reporter: Reporter,
        feed: LiveFeed,
        graph: TopologyGraph,
        plans: Sequence[GroupPlan],
        warehouse: Place,
    ) -> None:
        self._reporter, self._feed, self._graph, self._plans, self._warehouse = reporter, feed, graph, plans, warehouse
        self._name, self.ended = graph.name, feed.ended
        self.refresh_secs = refresh_secs(warehouse)
        self._letters, self._refused = (
            DeadLetterReader(warehouse, self._name),
            RefusedRequestReader(warehouse, self._name),
        )
        self._sizes = StateSizes(warehouse, self._name)
        groups, led_before = [plan.name for plan in plans], PastLeaderships(warehouse, self._name)
        self._before = Recent(lambda: led_before(groups), _SELDOM_SECS)
        self._kept = {group: last_transactions(warehouse, self._name, group, TRANSACTIONS) for group in groups}
        self._past = Recent(self._read_past, _SELDOM_SECS)

    def live(self) -> dict[str, Any]:
        reporter = self._reporter
        if getattr(reporter, "supervisor", None) is None:  # the port is open a moment before
            return {"running": True, "topology": self._name, "role": "starting", "groups": [], "rates": {}}
        status = reporter.status().to_json()
        stages = self._stages()
        leads = reporter.supervisor.leading.is_set()
        for group in status["groups"]:
            if not leads:  # as it was when this process led: nothing of it is in flight
                group["attempts"] = []
            for attempt in group["attempts"]:
                key = group["name"], attempt["txid"], attempt["attempt_id"]
                attempt["stage"] = stages.get(key, attempt["phase"].lower())
        return {
            "running": not reporter.supervisor.ended.is_set(),
            "topology": self._name,
            "incarnation": status["id"],
            **{name: status[name] for name in ("run_id", "epoch", "role", "error", "host", "pid", "groups")},
            "standby_of": reporter.supervisor.standby_of,
            "rates": self._feed.rates(time.time()),
            "read_only": self.read_only,
        }

    def _stages(self) -> dict[tuple[str, int, int], str]:
        """(group, txid, attempt id) → where the attempt stands, more closely than the status says."""
        return {
            (group.name, live.attempt.txid, live.attempt.attempt_id): live.stage.name.lower()
            for group in list(self._reporter.supervisor.groups)
            for live in group.driver.state.live
        }

    def since(self, sequence: int) -> dict[str, Any]:
        found = self._feed.since(sequence)
        if not sequence and len(found["transactions"]) < TRANSACTIONS:
            # A page that begins is shown what earlier processes have left in the warehouse, too.
            found["transactions"] = before(self._past(), found["transactions"])
        return found

    def _read_past(self) -> list[dict[str, Any]]:
        rows = {}
        for group, read in self._kept.items():
            try:
                rows[group] = list(read().rows.values())
            except (OSError, TridentError) as error:
                log.debug("the kept transactions of %s/%s are not shown: %s", self._name, group, error)
        return list(past_records(rows)["transactions"])

    def plan(self) -> dict[str, Any]:
        return plan_graph(self._graph, self._plans)

    def states(self) -> list[dict[str, Any]]:
        found = {one["name"]: one for one in self._sizes.records(self._advanced())}
        for plan in self._plans:
            for binding in plan.bindings:
                kind = binding.state_kind
                if binding.name in found or binding.name in plan.message_tables.values():
                    continue
                found[binding.name] = {
                    "name": binding.name,
                    "kind": kind.name,
                    "group": plan.name,
                    "keys": _keys(binding),
                    "has_keys": kind.values_by_key,
                    "txid": None,
                    "tables": [],
                    "trouble": "" if kind.has_table else _NO_TABLE,
                }
        return [found[name] for name in sorted(found)]

    def take_overs(self) -> dict[str, Any]:
        return {
            "standbys": waiting_standbys(self._warehouse, self._name, time.time()),
            "here": self._feed.take_overs(),
            "before": self._before(),
        }

    def look_up(self, state: str, texts: Sequence[str]) -> dict[str, Any]:
        supervisor = self._reporter.supervisor
        if supervisor.ended.is_set():
            raise NotLeading(f"{self._name} has ended; `trident ui {self._name}` shows what is kept")
        bindings = {binding.name: binding for plan in self._plans for binding in plan.bindings}
        fields = [] if state not in bindings else _fields(bindings[state])
        key = key_of_texts(state, fields, texts) if state in bindings else ()
        advanced = self._advanced()
        found = get_running(self._reporter.site, self._plans, advanced, supervisor.term.incarnation, state, key)
        return {"state": state, "key": list(texts), "found": found is not None, "value": shown_value(found)}

    def letters(self, last: int) -> tuple[list[DeadLetter], int | None, list[dict[str, Any]]]:
        refused = self._refused.requests(last)
        return self._letters.letters(last), self._letters.count(), [asdict(one) for one in refused]

    def replay(self, stream: str | None, messages: Sequence[str], again: bool) -> list[str]:
        return self._letters.replay(stream, messages, again)

    def _advanced(self) -> dict[str, int]:
        return {group.name: group.driver.last_advanced for group in list(self._reporter.supervisor.groups)}


def _fields(binding: StateBinding) -> list[Any]:
    types = {field.name: field for field in binding.shown_schema.fields}
    return [types[key] for key in binding.keys]


def _keys(binding: StateBinding) -> list[dict[str, str]]:
    return [{"name": field.name, "type": field.dataType.simpleString()} for field in _fields(binding)]
