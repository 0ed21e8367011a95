"""``trident history`` of kept manifests: a damaged one is not told as a transaction that changed nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.commands.history import history
from trident.config import TridentConfig
from trident.coordinators.errors import TransactionNotKept
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest, ManifestStore


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = TridentConfig(warehouse=str(tmp_path))
    before: TransactionAttempt | None = None
    for txid in (1, 2, 4, 5):  # 3 changed nothing; the newest may not be decided
        attempt = TransactionAttempt(txid, 0)
        parent = TransactionAttempt(3, 0) if txid == 4 else before
        made = Manifest("past", "lines", "9f3c", attempt, parent, (), {"lines": {"spout": "A", "metadata": txid}})
        ManifestStore(Place(tmp_path), "past", "lines", "9f3c").write(made)
        before = attempt
    path = tmp_path / "_trident/past/lines/manifests/9f3c/2-0.json"
    path.write_bytes(b"[" + path.read_bytes()[1:])  # one bit
    one, two, gap, four = (line.strip() for line in history("past", config=config)[1:])
    assert one.startswith("1  attempt 0") and four.startswith("4  attempt 0")
    assert (
        two.startswith("2  NOT READABLE: the manifest") and gap == "3: no row, as of transactions that changed nothing"
    )
    said = [json.loads(line) for line in history("past", config=config, as_json=True)]
    assert sorted((each["txid"], "unreadable" in each) for each in said) == [(1, False), (2, True), (4, False)]
    assert "2  NOT READABLE" in "\n".join(history("past", 2, config))
    with pytest.raises(
        TransactionNotKept, match="transaction 3 of past has no row: it changed nothing, or its manifest"
    ):
        history("past", 3, config)
