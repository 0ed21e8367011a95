"""Listeners: each in a thread of its own, in order; slow ones keep no transaction waiting, and no end for long."""

from __future__ import annotations

import sys
import threading
import time
import types
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from trident import TopologyListener, TridentConfig, events
from trident.errors import ConfigError
from trident.watching import listeners
from trident.watching.events import Advanced, Began, Event, Failed, Started, Terminated, TookOver, Watchers
from trident.watching.listeners import Listeners, made_listeners

OF_ALL: dict[str, Any] = {"topology": "t", "incarnation": "i", "run_id": "r"}


def advanced(txid: int) -> Advanced:
    return Advanced(**OF_ALL, group="g", txid=txid, attempt_id=0, progress={}, published=True, recovered=False)


def failed(txid: int) -> Failed:
    return Failed(**OF_ALL, group="g", txid=txid, attempt_id=0, part="processing", error=ValueError("mine"))


class Hears(TopologyListener):
    """Keeps what it is told, and from which threads; waits where a test says so."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Event]] = []
        self.threads: set[threading.Thread] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def _hear(self, call: str, event: Event) -> None:
        self.goes_on.wait()
        self.threads.add(threading.current_thread())
        self.heard.append((call, event))

    def on_started(self, event: events.Started) -> None:
        self._hear("started", event)

    def on_progress(self, event: events.Advanced) -> None:
        self._hear("progress", event)

    def on_failure(self, event: events.Failed) -> None:
        self._hear("failure", event)

    def on_takeover(self, event: events.TookOver) -> None:
        self._hear("takeover", event)

    def on_terminated(self, event: events.Terminated) -> None:
        self._hear("terminated", event)

    @property
    def calls(self) -> list[str]:
        return [call for call, _ in self.heard]


def held(of_query: Listeners) -> Hears:
    """A listener that does not go on yet."""
    listener = Hears()
    listener.goes_on.clear()
    of_query.add(listener)
    return listener


@pytest.fixture
def told() -> tuple[Watchers, Listeners]:
    watchers = Watchers()
    return watchers, Listeners(watchers)


def test_a_listener_is_told_each_event_in_order_in_one_thread_of_its_own(told: Any) -> None:
    watchers, of_query = told
    listener = Hears()
    of_query.add(listener)
    of_query.add(listener)  # once is enough
    for event in (
        Started(**OF_ALL),
        TookOver(**OF_ALL, epoch=3),
        Began(**OF_ALL, group="g", txid=1, attempt_id=0),
        advanced(1),
        failed(2),
        Terminated(**OF_ALL, error=None),
    ):
        watchers.notify(event)
    of_query.close()
    assert listener.calls == ["started", "takeover", "progress", "failure", "terminated"]
    assert len(listener.threads) == 1 and threading.current_thread() not in listener.threads
    assert of_query.dropped() == 0
    watchers.notify(advanced(2))
    assert eventually(lambda: not any(thread.is_alive() for thread in listener.threads)), "its thread ends"
    assert len(listener.calls) == 5


def test_one_that_raises_is_told_the_next_event_and_ends_nothing(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    watchers, of_query = told
    heard = []

    class Raises(TopologyListener):
        def on_progress(self, event: events.Advanced) -> None:
            heard.append(event.txid)
            raise SystemExit("mine") if event.txid == 1 else ValueError("mine")

    other = Hears()
    of_query.add(Raises())
    of_query.add(other)
    for txid in (1, 2, 3):
        watchers.notify(advanced(txid))
    of_query.close()
    assert heard == [1, 2, 3] and len(other.calls) == 3
    assert caplog.text.count("Raises raised at Advanced") == 3 and "ValueError: mine" in caplog.text


def test_a_full_queue_drops_progress_first_and_counts_and_blocks_no_teller(
    told: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "WAITING_MAX", 10)
    monkeypatch.setattr(listeners, "_RESERVE", 5)
    watchers, of_query = told
    listener = held(of_query)
    watchers.notify(advanced(1))
    assert eventually(lambda: of_query._deliveries[0][1]._is_called), "the first is under way"
    for txid in range(2, 100):
        watchers.notify(advanced(txid))
    assert of_query.dropped() == 88, "ten wait"
    for txid in range(100, 120):
        watchers.notify(failed(txid))
    assert of_query.dropped() == 88 + 15, "five more that are none of transactions wait"
    watchers.notify(Terminated(**OF_ALL, error=None))
    listener.goes_on.set()
    of_query.close()
    assert listener.calls == ["progress"] * 11 + ["failure"] * 5 + ["terminated"]
    assert caplog.text.count("is too slow: 10 events wait") == 1
    assert "too slow for 103 events" in caplog.text


def test_few_failures_wait_since_each_holds_the_rows_of_its_batch(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    watchers, of_query = told
    listener = held(of_query)
    watchers.notify(failed(1))
    assert eventually(lambda: of_query._deliveries[0][1]._is_called), "the first is under way"
    for txid in range(2, 300):
        watchers.notify(failed(txid))
    assert of_query.dropped() == 298 - listeners.FAILURES_MAX
    watchers.notify(advanced(300))
    listener.goes_on.set()
    of_query.close()
    assert listener.calls == ["failure"] * (1 + listeners.FAILURES_MAX) + ["progress"]
    assert caplog.text.count("is too slow: 100 events wait") == 1


def test_the_end_waits_for_a_slow_listener_but_not_for_ever(
    told: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "END_SECS", 0.3)
    watchers, of_query = told
    slow, hangs = Hears(), Hears()
    hangs.goes_on.clear()
    of_query.add(slow)
    of_query.add(hangs)
    watchers.notify(Terminated(**OF_ALL, error=None))
    of_query.close()
    assert slow.calls == ["terminated"] and hangs.calls == []
    assert "the topology ends while the listener Hears still gets its events" in caplog.text
    hangs.goes_on.set()
    assert eventually(lambda: hangs.calls == ["terminated"]), "it is told behind the end"


def test_one_that_is_removed_is_told_nothing_more_not_what_waits_either(told: Any) -> None:
    watchers, of_query = told
    listener = held(of_query)
    watchers.notify(advanced(1))
    assert eventually(lambda: of_query._deliveries[0][1]._is_called)
    watchers.notify(advanced(2))
    of_query.remove(listener)
    of_query.remove(listener)
    watchers.notify(advanced(3))
    listener.goes_on.set()
    time.sleep(0.2)
    assert [event.txid for _, event in listener.heard if isinstance(event, Advanced)] == [1]


@pytest.mark.parametrize("given", [Hears, print, None])
def test_what_is_no_listener_is_refused(told: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="subclass of trident.TopologyListener"):
        told[1].add(given)


def test_listeners_of_the_setting_are_made_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pagers")
    needs = type("Needs", (TopologyListener,), {"__init__": lambda self, url: None})
    vars(module).update(Pager=Hears, other=print, Needs=needs)
    monkeypatch.setitem(sys.modules, "pagers", module)
    monkeypatch.setenv("TRIDENT_LISTENER_CLASSES", "pagers:Pager, pagers:Pager")
    first, second = made_listeners(TridentConfig().listener_classes)
    assert type(first) is type(second) is Hears
    for name, says in {
        "pagers:Missing": "is not found",
        "no_such_module:Pager": "is not found",
        "pagers:other": "is no listener",
        "pagers:Needs": "cannot be made.*without arguments",
    }.items():
        with pytest.raises(ConfigError, match=says):
            made_listeners([name])
    for wrong in ("Pager", "pagers.Pager", "pagers:", [3]):
        with pytest.raises(ConfigError, match="listener_classes has an impossible value"):
            TridentConfig(listener_classes=wrong)


# --- watchers are told each event; one that raises ends nothing but its own watching -----------


def event(txid: int) -> Began:
    return Began(topology="t", incarnation="i", run_id="r", group="g", txid=txid, attempt_id=0)


def test_a_watcher_that_raises_is_told_nothing_more_and_the_others_are(caplog: Any) -> None:
    watchers, heard = Watchers(), []

    def raises(_: Event) -> None:
        heard.append("raised")
        raise ValueError("mine")

    watchers.add(raises)
    watchers.add(heard.append)
    watchers.notify(event(1))
    watchers.notify(event(2))
    assert [getattr(one, "txid", one) for one in heard] == ["raised", 1, 2]
    assert "raised at Began, and gets no more events" in caplog.text


def test_a_watcher_that_is_removed_is_told_nothing_more() -> None:
    watchers, heard = Watchers(), []
    watchers.add(heard.append)
    watchers.remove(heard.append)
    watchers.remove(print)
    watchers.notify(event(1))
    assert heard == []
