"""The present code goes on with what older versions stored of windows, timers, sequences, outside states and forks.

Each archive of tests/upgrade/round_two.py has a folder where all was stopped and one where each topology was killed in
the middle of a transaction. What the tables have then is compared with what plain Python makes of the input.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import trident
from tests.servers.kafka_fixtures import KafkaBroker
from tests.upgrade import kafka_copy
from tests.upgrade.make import AT_REST, DIED_AT_MAIL, ELSEWHERE, GROUP, HERE, KILLED, job, program_of, stop_servers
from tests.upgrade.round_two import BEGIN, OF_A_FILE, REFUSED, Greatest, event, feed, line
from tests.whole.test_upgrade import FIXTURES, extract
from trident.cli import main

OF_ROUND_TWO = [name for name in FIXTURES if program_of(name).name == "round_two.py"]
PROGRAM = HERE / "round_two.py"
FED = {"rest": AT_REST, "killed": KILLED}
DELAY = timedelta(seconds=70)
Event = dict[str, Any]


def test_there_is_a_fixture_of_round_two() -> None:
    assert "round-two" in OF_ROUND_TWO


# --- what plain Python makes of the input -----------------------------------------------------------------


def of_files(files: int) -> list[Event]:
    return [event(number) for number in range(files * OF_A_FILE)]


def watermark(events: list[Event]) -> datetime:
    return max(one["at"] for one in events) - DELAY


def in_windows(events: list[Event], length: int, slide: int) -> dict[datetime, list[Event]]:
    """Of each window that has fired, by its start, its events; minutes."""
    found: dict[datetime, list[Event]] = defaultdict(list)
    for one in events:
        last = BEGIN + (one["at"] - BEGIN) // timedelta(minutes=slide) * timedelta(minutes=slide)
        for back in range(length // slide):
            found[last - back * timedelta(minutes=slide)].append(one)
    return {start: rows for start, rows in found.items() if start + timedelta(minutes=length) <= watermark(events)}


def by(field: str, events: Iterable[Event]) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for one in events:
        found[one[field]].append(one)
    return found


def fired(events: list[Event], made: Any) -> set[tuple[datetime, str, Any]]:
    windows = in_windows(events, 4, 2)
    return {
        (start, user, made(one["n"] for one in rows))
        for start, all_rows in windows.items()
        for user, rows in by("user", all_rows).items()
    }


def sessions(events: list[Event]) -> set[tuple[datetime, datetime, str, int]]:
    gap, found = timedelta(minutes=2), set()
    for user, rows in by("user", events).items():
        cuts = [0, *(i for i in range(1, len(rows)) if rows[i]["at"] - rows[i - 1]["at"] > gap), len(rows)]
        for first, end in zip(cuts, cuts[1:]):
            found.add((rows[first]["at"], rows[end - 1]["at"] + gap, user, end - first))
    return {session for session in found if session[1] <= watermark(events)}


def first_of_slots(events: list[Event]) -> list[int]:
    went: dict[int, datetime] = {}
    found = []
    for one in events:
        slot = one["id"] % 5
        if slot not in went or one["at"] - went[slot] >= timedelta(minutes=5):
            went[slot] = one["at"]
            found.append(one["id"])
    return found


def ticked(events: list[Event]) -> Counter:
    found: Counter = Counter()
    for user, rows in by("user", events).items():
        found.update((user, one["at"], number) for number, one in enumerate(rows, 1))
        rung = (one["at"] + timedelta(seconds=90) for one in rows)
        found.update((user, at, 0) for at in rung if at <= watermark(events))
    return found


def paired(events: list[Event]) -> Counter:
    found: Counter = Counter()
    even = [one for one in events if one["n"] % 2 == 0]
    odd = [one for one in events if one["n"] % 2]
    seen = min(watermark(even), watermark(odd))
    for one in even:
        partners = [
            other["id"]
            for other in odd
            if other["user"] == one["user"] and timedelta() <= other["at"] - one["at"] <= timedelta(minutes=1)
        ]
        found.update((one["id"], partner) for partner in partners)
        if not partners and one["at"] + timedelta(minutes=1) < seen:
            found[one["id"], None] += 1
    return found


def counted(events: list[Event]) -> dict[str, int]:
    return Counter(one["user"] for one in events)


def squared(events: list[Event]) -> dict[str, int]:
    return {user: sum(one["n"] ** 2 for one in rows) for user, rows in by("user", events).items()}


def highest(events: list[Event]) -> dict[int, str]:
    return {item: f"{max(one['n'] for one in rows):03}" for item, rows in by("item", events).items()}


def items(events: list[Event]) -> dict[int, str]:
    """Of each item that is not deleted the name of the change with the greatest sequence."""
    newest = (max(rows, key=lambda one: one["lsn"]) for rows in by("item", events).values())
    return {one["item"]: one["name"] for one in newest if not one["gone"]}


def periods(events: list[Event]) -> set[tuple[int, str, int, int | None]]:
    found = set()
    for item, rows in by("item", events).items():
        changes = sorted(rows, key=lambda one: one["lsn"])
        for change, after in zip(changes, [*changes[1:], None]):
            if not change["gone"]:
                found.add((item, change["name"], change["lsn"], after and after["lsn"]))
    return found


# --- what the tables have ---------------------------------------------------------------------------------


def rows(folder: Path, table: str) -> list[dict]:
    """Read by another implementation of Delta."""
    return DeltaTable(str(folder / table)).to_pyarrow_table().to_pylist()


def start_of(row: dict) -> datetime:
    return row["window"]["start"].astimezone(timezone.utc)


def check_kept(warehouse: Path, name: str, files: int) -> None:
    """Once all is stopped, and the plain tables are up to date."""
    events = of_files(files)
    check_appends(warehouse, events)
    counts, squares, greatest = counted(events), squared(events), highest(events)
    assert {row["user"]: row["count"] for row in rows(warehouse, "counts")} == counts
    assert {row["user"]: row["squares"] for row in rows(warehouse, "squares")} == squares
    assert {row["item"]: row["greatest"] for row in rows(warehouse, "greatest")} == greatest
    assert [row["total"] for row in rows(warehouse, "total")] == [sum(one["n"] for one in events)]
    # The rows of deleted items stay, without their names.
    present = {row["item"]: row["name"] for row in rows(warehouse, "items") if row["name"] is not None}
    assert present == items(events)
    changes = {(row["item"], row["lsn"], row["name"]) for row in rows(warehouse, "periods")}
    assert changes == {(one["item"], one["lsn"], None if one["gone"] else one["name"]) for one in events}

    view = trident.view(warehouse, name)
    found = DeltaTable(*view.tables["counts"]).to_pyarrow_table().to_pylist()
    assert {row["user"]: row["count"] for row in found} == counts
    txids = [row["txid"] for row in rows(warehouse, f"{name}__events__transactions")]
    assert len(txids) == len(set(txids)) and max(txids) == view.txid == max(
        row["_txid"] or 0 for row in rows(warehouse, "asked")
    )


def check_shown(shown: dict[str, list[str]], files: int) -> None:
    """What Spark read of the states before the stop."""
    events = of_files(files)
    found = {state: [json.loads(text) for text in texts] for state, texts in shown.items()}
    assert {row["user"]: row["count"] for row in found["counts"]} == counted(events)
    assert {row["user"]: row["squares"] for row in found["squares"]} == squared(events)
    assert {row["item"]: row["greatest"] for row in found["greatest"]} == highest(events)
    assert {row["item"]: row["name"] for row in found["items"]} == items(events)
    told = {(row["item"], row["name"], row["valid_from"], row.get("valid_to")) for row in found["periods"]}
    assert told == periods(events)


def check_appends(warehouse: Path, events: list[Event]) -> None:
    changes = rows(warehouse, "changes")
    assert {user: max(row["squares"] for row in of_it) for user, of_it in by("user", changes).items()} == squared(
        events
    )
    asked = rows(warehouse, "asked")
    assert sorted(row["id"] for row in asked) == [one["id"] for one in events]
    txids = {row["id"]: row["_txid"] for row in asked}
    for row in asked:
        user = event(row["id"])["user"]
        before = [one for one in events if one["user"] == user and txids[one["id"]] < row["_txid"]]
        assert (row["before"] or 0) == len(before), row

    assert {(start_of(row), row["user"], row["total"]) for row in rows(warehouse, "by_window")} == fired(events, sum)
    own = fired(events, lambda numbers: f"{max(numbers):03}")
    assert {(start_of(row), row["user"], row["greatest"]) for row in rows(warehouse, "own_by_window")} == own
    in_rows = Counter((start_of(row), row["id"]) for row in rows(warehouse, "rows_by_window"))
    assert in_rows == Counter((at, one["id"]) for at, of_it in in_windows(events, 3, 3).items() for one in of_it)
    by_ten = sorted((row["window"]["start"], row["count"]) for row in rows(warehouse, "by_ten"))
    assert by_ten == [(number * 10, 10) for number in range(len(events) // 10)]
    visits = rows(warehouse, "visits")
    ends = {(start_of(row), row["window"]["end"].astimezone(timezone.utc), row["user"], row["count"]) for row in visits}
    assert ends == sessions(events) and len(visits) == len(ends)

    assert sorted(row["id"] for row in rows(warehouse, "firsts")) == first_of_slots(events)
    ticks = Counter((row["user"], row["at"].astimezone(timezone.utc), row["seen"]) for row in rows(warehouse, "ticks"))
    assert ticks == ticked(events)
    assert Counter((row["id"], row["odd_id"]) for row in rows(warehouse, "pairs")) == paired(events)


def check_sent(folder: Path, files: int, moment: str) -> None:
    """Each mail with one key, however often it was sent; the refused ones are dead letters, once."""
    warehouse, ids = folder / "warehouse", {one["id"] for one in of_files(files)}
    assert Counter(row["id"] for row in rows(warehouse, "sent_events")) == Counter(ids)
    mails = [json.loads(line) for line in (folder / "mails.jsonl").read_text().splitlines()]
    assert {mail["id"] for mail in mails} == ids
    assert len({mail["key"] for mail in mails}) == len(ids)
    times = sum(mail["id"] == DIED_AT_MAIL for mail in mails)
    assert times == (2 if moment == "killed" else 1), "the mail that had no answer comes again, with its key"
    refused = [
        json.loads(json.loads(text)["body"])["id"]
        for file in (warehouse / "sent__mails__outbox" / "refused").iterdir()
        for text in file.read_text().splitlines()
    ]
    assert sorted(refused) == sorted(one for one in ids if one % 10 == REFUSED)


# --- the tests --------------------------------------------------------------------------------------------


@pytest.fixture(params=OF_ROUND_TWO)
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The folders ``rest`` and ``killed`` of an archive."""
    extract(request.param, tmp_path)
    for record in tmp_path.glob("*/fork/_trident/*/fork.json"):
        # Commands look there for the fork's original.
        record.write_text(record.read_text().replace(ELSEWHERE, str(record.parents[3])))
    yield tmp_path
    for folder in FED:
        stop_servers(tmp_path / folder)


def run(folder: Path, *names: str, **environment: str) -> None:
    done = job(folder, "run", *names, program=PROGRAM, **environment)
    assert done.returncode == 0 and "all advanced" in done.stdout, done.stdout + done.stderr


def told(*arguments: str) -> str:
    """What a command says."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("moment", FED)
def test_what_an_older_version_left_is_read_as_it_lies_there(
    older: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Spark and ZooKeeper: key by key, as of a view, and by the commands. A decided transaction of which only
    some tables are published is not there yet."""
    monkeypatch.chdir(older / moment)
    last = AT_REST if moment == "rest" else AT_REST + (KILLED - AT_REST) // 2
    events = of_files(AT_REST)
    counts, squares, present = counted(events), squared(events), items(events)
    assert trident.get("warehouse", "counts", list(counts)) == [{"count": count} for count in counts.values()]
    assert trident.get("warehouse", "squares", list(squares)) == [{"squares": value} for value in squares.values()]
    found = trident.get("warehouse", "items", list(range(7)))
    assert [row and row["name"] for row in found] == [present.get(item) for item in range(7)]
    assert trident.get("warehouse", "total") == {"total": sum(one["n"] for one in events)}
    greatest = highest(events)
    found = trident.get("warehouse", "greatest", list(greatest), aggregator=Greatest())
    assert found == [{"greatest": value} for value in greatest.values()]

    view = trident.view("warehouse", "kept")
    merged = DeltaTable(*view.tables["counts"]).to_pyarrow_table().to_pylist()
    assert {row["user"]: row["count"] for row in merged} == counted(of_files(view.txid))
    seen = DeltaTable(*view.tables["asked"]).to_pyarrow_table().to_pylist()
    assert len(seen) == view.txid * OF_A_FILE

    writers = trident.explain_row("warehouse", "kept", "asked", {"id": 0}).writers
    assert [writer.txid for writer in writers] == [1]
    history = [json.loads(text) for text in told("history", "kept", "--warehouse", "warehouse", "--json").splitlines()]
    assert sorted(one["txid"] for one in history) == list(range(1, last + 1))
    letters = told("dead-letters", "list", "sent", "--warehouse", "warehouse", "--json").splitlines()
    assert len(letters) == sum(one["id"] % 10 == REFUSED for one in events)


@pytest.mark.long
@pytest.mark.parametrize("moment", FED)
def test_what_an_older_version_left_is_gone_on_with_exactly(
    older: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process: windows, timers and keyed states, a fork, an outbox, the table of a job of Structured Streaming."""
    folder, files = older / moment, FED[moment] + 1
    monkeypatch.chdir(folder)
    feed(FED[moment], files)
    run(folder, "kept", "kept_fork", "sent", "moved")
    for name, warehouse in (("kept", "warehouse"), ("kept_fork", "fork")):
        check_kept(folder / warehouse, name, files)
        check_shown(json.loads(Path(f"{name}-shown.json").read_text()), files)
    assert "no difference" in told("diff", "kept", "kept_fork", "--warehouse", "fork")
    check_sent(folder, files, moment)
    words = Counter(word for number in range(files) for word in line(number).split())
    assert {row["word"]: row["count"] for row in rows(folder / "warehouse", "words")} == words


@pytest.mark.long
@pytest.mark.parametrize("moment", FED)
def test_an_older_versions_marks_in_kafka_say_what_a_topic_has(
    older: Path, moment: str, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed it had published a transaction of which ZooKeeper did not know yet: that is not sent again."""
    folder, files = older / moment, FED[moment] + 1
    monkeypatch.chdir(folder)
    kafka_copy.put(kafka, json.loads(Path("kafka.json").read_text()))
    try:
        feed(FED[moment], files)
        run(folder, "topics", BROKERS=kafka.address)
        found = kafka_copy.taken(kafka, "mirrored", GROUP)["messages"]
    finally:
        kafka.delete("mirrored")
    sent = [json.loads(value) for messages in found.values() for _, _, value in messages]
    events = of_files(files)
    assert sorted((one["id"], one["item"]) for one in sent) == [(one["id"], one["item"]) for one in events]
    assert all(messages for messages in found.values()), "keys in each partition"
    assert sorted(row["id"] for row in rows(folder / "warehouse", "topic_events")) == [one["id"] for one in events]
