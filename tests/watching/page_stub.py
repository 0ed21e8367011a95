"""A page source without a topology: what it says is what the test has put into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from trident.coordinators.errors import TableError
from trident.drpc.requests import Answer
from trident.messages.dead_letters import DeadLetter
from trident.watching.live_feed import LiveFeed


class StubFront:
    """Whom the server asks; it has no functions."""

    name, is_leader, role = "stub", True, "leader"
    plans: dict[str, Any] = {}

    def answer(self, *_: Any) -> Answer:
        raise AssertionError("no function is there to be asked")


class StubSource:
    """``PageSource`` with a real feed; hangs in ``states`` while ``held`` is not set."""

    read_only = ""
    live_secs, refresh_secs = 0.2, 2.0

    def __init__(self) -> None:
        self.feed, self.held = LiveFeed(), threading.Event()
        self.held.set()
        self.ended = self.feed.ended
        self.padding = ""
        self.looks = 0
        self.replayed: list[tuple[str | None, list[str], bool]] = []
        self.found_letters: list[DeadLetter] = []
        self.refused: list[dict[str, Any]] = []

    def live(self) -> dict[str, Any]:
        self.looks += 1
        shown = {"running": True, "topology": "stub", "role": "leader", "groups": [], "rates": {}}
        return {**shown, "looks": self.looks, "padding": self.padding}

    def since(self, sequence: int) -> dict[str, Any]:
        return self.feed.since(sequence)

    def plan(self) -> dict[str, Any]:
        return {"topology": "stub", "groups": []}

    def states(self) -> list[dict[str, Any]]:
        assert self.held.wait(60)
        return []

    def take_overs(self) -> dict[str, Any]:
        return {"standbys": [], "here": [], "before": []}

    def look_up(self, state: str, texts: Sequence[str]) -> dict[str, Any]:
        if state == "slow":
            time.sleep(0.5)
        if state == "none":
            raise TableError("there is no state 'none'")
        return {"state": state, "key": list(texts), "found": True, "value": {"n": 1}}

    def letters(self, last: int) -> tuple[list[DeadLetter], int | None, list[dict[str, Any]]]:
        return self.found_letters, len(self.found_letters), self.refused

    def replay(self, stream: str | None, messages: Sequence[str], again: bool) -> list[str]:
        self.replayed.append((stream, list(messages), again))
        return [f"{stream}: {len(messages)} to be tried again"]
