"""``reset_timeout`` moves the time limit of a round: what the driver's watch sees, and what a worker does."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest

from trident.spark import jobs as job_watch
from trident.tuples import tasks
from trident.tuples.bolts import BasicOutputCollector, OutputCollector, Report, Tuple
from trident.tuples.rounds import EXTENSIONS_MAX, RoundWatch
from trident.tuples.tasks import ResetSender


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tasks, "_round_of_task", lambda: "round-1")
    return now


def test_each_reset_renews_the_rounds_time_and_only_up_to_a_bound(tmp_path: Path, clock: list[float]) -> None:
    watch, sender = RoundWatch(None, "round-1", 10.0, tmp_path), ResetSender(str(tmp_path))
    watch.path.mkdir()
    renewed = []
    while clock[0] < 100.0 + 3 * EXTENSIONS_MAX * 10.0:
        assert not watch._renewed(), "nobody has reset it"
        sender.send()
        if watch._renewed():
            renewed.append(clock[0])
        clock[0] += 8.0
    assert renewed[:3] == [100.0, 108.0, 116.0] and watch.extended
    assert renewed[-1] + 10.0 <= 100.0 + EXTENSIONS_MAX * 10.0, "a round ends"
    watch.__exit__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resets", [True, False])
def test_a_round_is_cancelled_when_nobody_has_reset_it_for_its_whole_time(tmp_path: Path, monkeypatch, resets) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(job_watch, "WATCH_SECS", 0.01)
    monkeypatch.setattr(job_watch, "has_tasks", lambda context, group: True)
    monkeypatch.setattr(job_watch, "cancel_group", lambda context, group: cancelled.set())
    with RoundWatch(None, "round-1", 1.0, tmp_path) as watch:
        for _ in range(28):
            if resets:
                (watch.path / uuid.uuid4().hex).touch()
            time.sleep(0.05)
        assert (watch.timed_out, cancelled.is_set(), watch.extended) == (not resets, not resets, resets)
    assert cancelled.is_set() is not resets


def test_a_bolt_that_resets_for_every_tuple_writes_seldom(tmp_path: Path, clock: list[float]) -> None:
    path, sender = tmp_path / "round-1", ResetSender(str(tmp_path))
    path.mkdir()
    for _ in range(1_000):
        sender.send()
        clock[0] += 0.001
    assert 3 <= len(list(path.iterdir())) <= 5


def test_a_task_of_a_round_that_is_over_leaves_nothing_behind_and_says_so_once(tmp_path: Path, clock) -> None:
    tuple_ = Tuple(("a",), ("value",), "texts", ids={7: 1})
    collector = OutputCollector(Report("works", 0), {}, send_reset=ResetSender(str(tmp_path)).send)
    for _ in range(3):
        collector.reset_timeout(tuple_)
        clock[0] += 1.0
    BasicOutputCollector(collector, tuple_).reset_timeout()
    report = collector.close()
    assert os.listdir(tmp_path) == [] and report.resets == {7}
    assert [text[:60] for text in report.untracked] == ["reset_timeout could not extend the round: FileNotFoundError:"]


def test_rounds_without_a_time_limit_need_no_file() -> None:
    ResetSender(None).send()
