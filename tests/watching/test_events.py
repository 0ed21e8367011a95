"""Watchers are told each event; one that raises ends nothing but its own watching."""

from __future__ import annotations

from typing import Any

from trident.watching.events import Began, Event, Watchers


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
