"""``trident history`` of kept manifests: a damaged one is not told as a transaction that changed nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.commands.history import history
from trident.config import TridentConfig
from trident.coordinators.errors import TransactionNotKept
from trident.coordinators.identities import TransactionAttempt
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history import recorded


def kept(warehouse: Path, incarnation: str, *attempts: TransactionAttempt) -> None:
    before: TransactionAttempt | None = None
    for attempt in attempts:
        made = Manifest("past", "lines", incarnation, attempt, before, (), {"lines": {"spout": "A", "metadata": 1}})
        ManifestStore(Place(warehouse), "past", "lines", incarnation).write(made)
        before = attempt


def test_transactions_from_before_a_rollback_come_with_a_word(tmp_path: Path) -> None:
    config = TridentConfig(warehouse=str(tmp_path))
    kept(tmp_path, "9f3c", *(TransactionAttempt(txid, 0) for txid in (1, 2, 3, 4)))
    kept(tmp_path, "9f3c-r1", *(TransactionAttempt(txid, 7) for txid in (3, 4)))  # the newest may not be decided
    word = "from before rollback 1; whether it was taken back is not known any more"  # no table tells
    said = [line.strip() for line in history("past", config=config)[1:]]
    assert [line.split("  ")[0] for line in said] == ["1", "2", "3", "3"]
    assert all(line.endswith(word) for line in said[:3]) and "attempt 7" in said[3] and "rollback" not in said[3]
    assert [line.strip()[0] for line in history("past", config=config, last=2)[1:]] == ["3", "3"]
    assert [line.strip()[0] for line in history("past", config=config, last=1)[1:]] == ["3"]
    of_three = "\n".join(history("past", 3, config))
    assert "incarnation 9f3c, " in of_three and word in of_three and "incarnation 9f3c-r1, " in of_three
    told = [json.loads(line) for line in history("past", config=config, as_json=True)]
    assert [(one["txid"], one["incarnation"], one["taken_back"]) for one in told] == [
        *((txid, "9f3c", None) for txid in (1, 2, 3)),
        (3, "9f3c-r1", False),
    ]
    with pytest.raises(TransactionNotKept, match="lines: 1 to 3"):
        history("past", 9, config)


def test_a_manifest_from_before_a_rollback_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = TridentConfig(warehouse=str(tmp_path))
    kept(tmp_path, "9f3c", *(TransactionAttempt(txid, 0) for txid in (1, 2, 3, 4)))
    kept(tmp_path, "9f3c-r1", *(TransactionAttempt(txid, 7) for txid in (3, 4)))
    path = tmp_path / "_trident/past/lines/manifests/9f3c/2-0.json"
    path.write_bytes(b"[" + path.read_bytes()[1:])
    one, lost, *others = (line.strip() for line in history("past", config=config)[1:])
    assert lost.startswith("2  NOT READABLE, from before rollback 1: the manifest") and len(others) == 2
    assert one.startswith("1  attempt 0")
    assert history("past", config=config, last=2)[1:] == history("past", config=config)[3:], "1 and 2 are not asked for"
    assert "2  NOT READABLE" in "\n".join(history("past", 2, config))
    said = [json.loads(line) for line in history("past", config=config, as_json=True)]
    assert sorted((each["txid"], each["incarnation"], "unreadable" in each) for each in said) == [
        (1, "9f3c", False),
        (2, "9f3c", True),
        (3, "9f3c", False),
        (3, "9f3c-r1", False),
    ]
    path = tmp_path / "_trident/past/lines/manifests/9f3c/4-0.json"
    path.write_bytes(path.read_bytes()[:100])  # the last of its incarnation, of which no later one tells
    said = [line.strip() for line in history("past", config=config)[1:]]
    assert [line.split("  ")[0] for line in said] == ["1", "2", "3", "4", "3"]
    assert said[3].startswith("4  NOT READABLE, from before rollback 1: the manifest") and "decided or not" in said[3]


@pytest.mark.parametrize("stay", [0, 1, 617, 1000])
@pytest.mark.parametrize("unknown", [0, 1, 500, 600, 617, 900, 1000])
def test_of_many_transactions_before_a_rollback_few_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, stay: int, unknown: int
) -> None:
    """Each look lists the logs of the tables; of the oldest ones the logs cannot tell any more."""
    asked: list[int] = []

    def look(tables: object, row: dict[str, int]) -> bool | None:
        asked.append(row["txid"])
        return None if row["txid"] <= unknown else row["txid"] > stay

    monkeypatch.setattr(recorded, "_taken_back", look)
    told = recorded._not_rolled_back([{"txid": txid} for txid in range(1, 1001)], None)  # type: ignore[arg-type]
    # One that is known to stay says that those before it do.
    cannot_tell = unknown if unknown >= stay else 0
    answers = [None if txid <= cannot_tell else txid > stay for txid in range(1, 1001)]
    assert [one.taken_back for one in told] == answers and len(asked) <= 11


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
