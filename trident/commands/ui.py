"""``trident ui NAME``: the live page of a topology's warehouse, also where no process runs the topology. Reads only.

All is read from the warehouse, without Spark and without ZooKeeper: the last status, the table of transactions, kept
manifests, the logs of the states' tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import NotLeading, TridentError
from trident.drpc.http import HttpServer
from trident.drpc.requests import Answer
from trident.maintenance.inventory import warehouse_of
from trident.messages.dead_letters import DeadLetter, DeadLetterReader
from trident.planning.requests import DrpcPlan
from trident.running.status import condition, read_status, waiting_standbys
from trident.states.core.descriptor import list_descriptors
from trident.states.core.place import Place
from trident.states.delta.manifest import groups_with_manifests
from trident.states.history.recorded import PastLeaderships, Transactions, last_transactions
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.pinning import load_state
from trident.states.outside.outbox import RefusedRequestReader
from trident.watching.live_feed import past_records
from trident.watching.live_page import LIVE_SECS, LivePage, Recent, StateSizes, key_of_texts, refresh_secs, shown_value

_PAST_SECS, _SELDOM_SECS = 5.0, 30.0
# Of each batch group: the page shows the last hundred, and failures of earlier ones.
_PAST_TXIDS = 1_000
# The status is read from the warehouse here: four times a second would be 350,000 requests a day to a store.
_STORE_LIVE_SECS = 5.0


def serve(
    name: str,
    config: TridentConfig | None,
    port: int,
    print_url: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Answers at a loopback address until it is stopped; with the setting ``http_token`` only who presents it.

    Args:
        port: 0 takes a free one.
        print_url: is given the page's address.

    Raises:
        TopologyError: the warehouse knows no such topology.
        AddressInUse: another process listens there.
    """
    config = as_config(config)
    source = WarehouseSource(warehouse_of(config, name), name)
    server = HttpServer(f"127.0.0.1:{port}", config.http_token, _NoFunctions(name), LivePage(source).routes())
    try:
        print_url(f"http://{server.address}/")
        stop.wait()
    finally:
        source.ended.set()
        server.stop()


class _NoFunctions:
    """``trident.drpc.application.Answers`` where no topology runs."""

    is_leader = False
    role = "page"

    def __init__(self, name: str) -> None:
        self.name = name
        self.plans: dict[str, DrpcPlan] = {}

    def answer(self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float) -> Answer:
        raise NotLeading(f"no topology runs here: `trident ui` shows what the warehouse of {self.name} has")


class WarehouseSource:
    """``trident.watching.live_page.PageSource`` of a warehouse."""

    read_only = "`trident dead-letters replay` does that"

    def __init__(self, warehouse: Place, topology: str) -> None:
        self.ended = threading.Event()
        self._warehouse, self._topology = warehouse, topology
        self.refresh_secs = refresh_secs(warehouse)
        self.live_secs = LIVE_SECS if warehouse.is_local else _STORE_LIVE_SECS
        self._letters, self._refused = DeadLetterReader(warehouse, topology), RefusedRequestReader(warehouse, topology)
        self._sizes = StateSizes(warehouse, topology)
        self._keys = KeyReader(warehouse)
        past_secs = max(_PAST_SECS, self.refresh_secs)
        self._transactions: dict[str, Callable[[], Transactions]] = {}  # batch group → looks at its last ones
        self._rows = Recent(self._read_rows, past_secs)
        self._past = Recent(lambda: past_records(self._rows()), past_secs)
        led_before = PastLeaderships(warehouse, topology)
        self._before = Recent(lambda: led_before(self._groups()), max(_SELDOM_SECS, past_secs))

    def _groups(self) -> list[str]:
        described = {state.group for state in list_descriptors(self._warehouse, self._topology)}
        return sorted(described | set(groups_with_manifests(self._warehouse, self._topology)))

    def _read_rows(self) -> dict[str, list[dict[str, Any]]]:
        """Batch group → the last rows of its table of transactions, the oldest first."""
        found = {}
        for group in self._groups():
            read = self._transactions.get(group)
            if read is None:
                read = last_transactions(self._warehouse, self._topology, group, _PAST_TXIDS)
                self._transactions[group] = read
            found[group] = list(read().rows.values())
        return found

    def live(self) -> dict[str, Any]:
        shown = {"topology": self._topology, "running": False, "rates": {}, "read_only": self.read_only}
        try:
            status = read_status(self._warehouse, self._topology)
        except TridentError as error:
            return {**shown, "role": "unknown", "groups": [], "error": str(error), "run_id": ""}
        found = status.to_json()
        what = condition(status)
        for group in found["groups"]:
            for attempt in group["attempts"]:
                attempt["stage"] = attempt["phase"].lower()
            if what != "running":
                group["attempts"] = []
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.written_at))
        return {
            **shown,
            "running": what == "running",
            "incarnation": found["id"],
            **{name: found[name] for name in ("run_id", "epoch", "error", "host", "pid", "groups")},
            "role": what if what != "running" else status.role,
            "as_of": f"status of {when}",
            "rates": _rates(found["groups"]) if what == "running" else {},
        }

    def since(self, sequence: int) -> dict[str, Any]:
        return self._past()

    def plan(self) -> dict[str, Any]:
        """Streams, batch groups and states: the operations between them are in the topology's code."""
        described = list_descriptors(self._warehouse, self._topology)
        rows = self._rows()
        groups = []
        for group in sorted({state.group for state in described} | set(rows)):
            sources = rows[group][-1]["sources"] if rows.get(group) else []
            states = [state.name for state in described if state.group == group and state.ends_at is None]
            groups.append(stored_plan(group, sources, states))
        note = "From the warehouse alone: the operations between streams and states are in the topology's code."
        return {"topology": self._topology, "groups": groups, "note": note}

    def states(self) -> list[dict[str, Any]]:
        return self._sizes.records()

    def take_overs(self) -> dict[str, Any]:
        standbys = waiting_standbys(self._warehouse, self._topology, time.time())
        return {"standbys": standbys, "here": [], "before": self._before()}

    def look_up(self, state: str, texts: Sequence[str]) -> dict[str, Any]:
        described = load_state(self._warehouse, state)
        types = {field.name: field for field in described.schema.fields}
        key = key_of_texts(state, [types[name] for name in described.keys], texts)
        found = self._keys.get(state, self._keys.requested(state, [key]))[0]
        return {"state": state, "key": list(texts), "found": found is not None, "value": shown_value(found)}

    def letters(self, last: int) -> tuple[list[DeadLetter], int | None, list[dict[str, Any]]]:
        refused = self._refused.requests(last)
        return self._letters.letters(last), self._letters.count(), [asdict(one) for one in refused]

    def replay(self, stream: str | None, messages: Sequence[str], again: bool) -> list[str]:
        raise AssertionError("the page of a warehouse reads only")


def _rates(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rates that the status has; None: not known."""
    transactions = [group["txids_per_second"] for group in groups]
    return {
        "transactions": None if None in transactions else sum(transactions),
        "groups": {group["name"]: group["rows_per_second"] for group in groups},
        "states": {},
    }


def stored_plan(group: str, sources: Sequence[Mapping[str, Any]], states: Sequence[str]) -> dict[str, Any]:
    """A batch group as ``plan_graph`` has it, of its streams and states alone. Pure."""
    middle = f"{group}:batches"
    nodes = [
        _node(f"{group}:from {one['stream']}", one["spout"] or "spout", "spout", 0) | {"stream": one["stream"]}
        for one in sources
    ]
    edges = [{"from": node["id"], "to": middle, "fields": [], "reads": False} for node in nodes]
    depth = 1 if nodes else 0
    nodes.append(_node(middle, f"batches of {group}", "Spark", depth))
    for state in states:
        own = _node(f"{group}:to {state}", state, "state", depth + 1) | {"state": state}
        nodes.append(own)
        edges.append({"from": middle, "to": own["id"], "fields": [], "reads": False})
    return {"name": group, "nodes": nodes, "edges": edges}


def _node(own: str, label: str, kind: str, depth: int) -> dict[str, Any]:
    return {"id": own, "label": label, "kind": kind, "depth": depth, "location": ""}
