"""Collectors are used from several threads: no emit is lost, or taken twice (docs/semantics.md 6)."""

from __future__ import annotations

import copy
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from trident.spouts.rich import SpoutCollector

THREADS, EMITS = 4, 20_000


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def emit_all(emit: Callable[[int], None], take: Callable[[], None]) -> None:
    """Emits from several threads while this one takes."""
    threads = [
        threading.Thread(target=lambda first=first: [emit(n) for n in range(first, THREADS * EMITS, THREADS)])
        for first in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        take()
    take()


def test_a_spouts_collector_loses_no_emit_of_a_thread(many_switches) -> None:
    collector, taken = SpoutCollector({"default": 1}), []
    emit_all(lambda n: collector.emit(n, n), lambda: taken.extend(collector.drain()))
    found = Counter(message.message_id for message in taken)
    missing = THREADS * EMITS - len(found)
    assert not missing, f"{missing} of {THREADS * EMITS} emits are lost"
    assert set(found.values()) == {1} and len(collector) == 0


def test_a_spout_with_a_collector_can_still_be_copied_for_its_tasks() -> None:
    collector = SpoutCollector({"default": 1})
    collector.emit(1, "id")
    assert [message.message_id for message in copy.deepcopy(collector).drain()] == ["id"]
