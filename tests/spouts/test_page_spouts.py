"""The committer of docs/spouts.md, taken from the page, is exact over failures, kills and deposed processes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pages.page_runner import ROOT, blocks
from tests.spouts.committer_harness import Group
from trident.spouts.contracts import Cancels, Commits


def code(defines: str) -> dict[str, Any]:
    (block,) = [one for one in blocks(ROOT / "docs" / "spouts.md") if f"class {defines}" in one.text]
    names: dict[str, Any] = {}
    exec(compile(block.text, "spouts.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("seed", range(12))
def test_the_committer_of_the_page_gives_each_row_to_one_committed_batch(seed: int, tmp_path: Path) -> None:
    page, rng = code("JobsSpout:"), random.Random(seed)
    jobs, put = page["Jobs"](tmp_path / "jobs.db"), []

    def feed() -> bool:
        several = [f"job {len(put) + n}" for n in range(rng.randrange(1, 9))]
        put.extend(several)
        jobs.put(several)
        return True

    group = Group(lambda: page["JobsSpout"](tmp_path / "jobs.db", 3), tmp_path, rng, cancels=seed % 2 == 0)
    assert isinstance(group.life.emitter, Commits) and isinstance(group.life.emitter, Cancels)
    steps = [group.begin, group.begin, group.emit, group.prepare, group.decide, group.finish] * 3
    steps += [feed, feed, group.commit_only, group.fail, group.late_thread, group.kill, group.stop, group.zombie]
    for _ in range(200):
        rng.choice(steps)()
    group.drain()
    assert Counter(row[1] for _, row in group.table) == Counter(put)
    assert jobs.waiting() == []
