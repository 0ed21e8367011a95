"""The feed of the live page: bounded records of events, rates, the stream to one page. Pure."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

import pytest

from trident.commands.ui import stored_plan
from trident.states.history.recorded import leaderships, part_of
from trident.udf.signatures import UsersTraceback
from trident.watching import live_page
from trident.watching.events import Advanced, Began, Failed, LostLead, Terminated, TookOver, Waits
from trident.watching.live_feed import FAILURES, TRANSACTIONS, LiveFeed, before, past_records, rates
from trident.watching.live_page import Recent, live_stream, shown_value

OF = {"topology": "t", "incarnation": "i", "run_id": "r"}


def advanced(txid: int, at: float, rows: int = 3, **more: Any) -> Advanced:
    progress = {"num_input_rows": rows, "duration_ms": {"process": 5.0, "total": 8.0}, "states": {"counts": 2}}
    return Advanced(
        **OF,
        at=at,
        group="g",
        txid=txid,
        attempt_id=0,
        progress=progress,
        published=True,
        **{"recovered": False, **more},
    )


def failed(txid: int, error: BaseException) -> Failed:
    return Failed(**OF, group="g", txid=txid, attempt_id=1, part="processing", error=error)


def raised() -> ValueError:
    try:
        try:
            raise UsersTraceback('  File "mine.py", line 3, in split\n')
        except UsersTraceback as own:
            raise ValueError("this word is poison") from own
    except ValueError as error:
        return error


def test_the_feed_keeps_so_many_and_gives_what_is_behind_a_number() -> None:
    feed = LiveFeed()
    for txid in range(1, TRANSACTIONS + 11):
        feed(advanced(txid, float(txid)))
        feed(Began(**OF, group="g", txid=txid, attempt_id=0))
    found = feed.since(0)
    assert [one["txid"] for one in found["transactions"]] == list(range(11, TRANSACTIONS + 11))
    last = found["seq"]
    assert feed.since(last) == {"seq": last, "transactions": [], "failures": []}
    feed(failed(7, raised()))
    later = feed.since(last)
    assert later["transactions"] == [] and later["seq"] == last + 1
    (failure,) = later["failures"]
    assert (failure["txid"], failure["attempt"], failure["kind"]) == (7, 1, "ValueError")
    assert failure["traceback"].startswith("Your function (most recent call last):")
    assert "mine.py" in failure["traceback"] and "this word is poison" in failure["traceback"]
    for n in range(FAILURES + 5):
        feed(failed(n, ValueError("x" * 1_000_000)))
    assert len(feed.since(0)["failures"]) == FAILURES
    assert len(json.dumps(feed.since(0))) < FAILURES * 25_000


def test_a_recovered_transaction_has_no_rows_that_were_read() -> None:
    feed = LiveFeed()
    feed(advanced(4, 1.0, recovered=True))
    assert feed.since(0)["transactions"][0]["rows"] is None


def test_take_overs_and_the_end_are_kept() -> None:
    feed = LiveFeed()
    feed(Waits(**OF, host="other", pid=7))
    feed(TookOver(**OF, epoch=3))
    feed(LostLead(**OF))
    assert [one["what"] for one in feed.take_overs()] == ["waits", "leads", "leads no more"]
    assert not feed.ended.is_set()
    feed(Terminated(**OF, error=None))
    assert feed.ended.is_set()


def test_rates_are_of_the_last_ten_seconds_and_fall_to_zero() -> None:
    feed = LiveFeed()
    for txid, at in enumerate((90.0, 95.0, 99.0, 100.0), 1):
        feed(advanced(txid, at, rows=10))
    assert feed.rates(100.5) == {"transactions": 0.3, "groups": {"g": 3.0}, "states": {"counts": 0.6}}
    assert feed.rates(200.0) == {"transactions": 0.0, "groups": {"g": 0.0}, "states": {"counts": 0.0}}


def test_a_page_that_begins_has_the_transactions_of_earlier_processes_before_those_of_this_one() -> None:
    feed = LiveFeed()
    past = [{"group": group, "txid": txid} for txid in range(1, 90) for group in ("a", "b")]
    shown = before(past, feed.since(0)["transactions"])
    assert len(shown) == TRANSACTIONS and shown[-1] == {"group": "b", "txid": 89, "seq": 178 / 179}
    transactions = [{"group": "a", "txid": 80, "seq": 2}, {"group": "a", "txid": 81, "seq": 3}]
    shown = before(past, transactions)
    assert [one["txid"] for one in shown if one["group"] == "a"][-3:] == [79, 80, 81], "each once"
    assert [one["seq"] for one in shown] == sorted({one["seq"] for one in shown}) and 0 < shown[0]["seq"] < 1
    assert feed.sequence == 1, "a page that has these asks for what is behind them"


def test_the_rate_of_a_group_with_rows_that_are_not_known_is_not_known() -> None:
    one = {"at": 100.0, "states": {}, "recovered": False}
    found = [{**one, "group": "a", "rows": 20}, {**one, "group": "b", "rows": None}]
    found += [{**one, "group": "a", "rows": None, "recovered": True}]  # an earlier process has read these
    assert rates(found, 101.0)["groups"] == {"a": 2.0, "b": None}


def test_rates_where_more_than_are_kept_fall_into_ten_seconds() -> None:
    records = [{"at": 100 + n / 50, "group": "g", "rows": 4, "states": {}} for n in range(100)]
    assert rates(records, 102.0, is_full=True)["groups"] == {"g": 200.0}
    assert rates(records, 102.0)["groups"] == {"g": 40.0}


async def told(stream: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next state of a stream, whatever comes before it."""
    while not (piece := await anext(stream)).startswith(b"event: live\ndata: "):
        assert piece in (b"retry: 2000\n\n", b": nothing new\n\n")
    return json.loads(piece.split(b"data: ")[1])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secs in {"TICK_SECS": 0.001, "QUIET_SECS": 0.02, "LOST_SECS": 0.1}.items():
        monkeypatch.setattr(live_page, name, secs)


def test_a_stream_says_what_is_new_and_now_and_then_that_nothing_is(quick: None) -> None:
    states, ended = [{"seq": 4, "at": 1.0}], threading.Event()

    async def read() -> None:
        stream = live_stream(lambda seq: states[-1] | {"asked": seq}, ended)
        assert (await anext(stream)).startswith(b"retry:")
        assert (await told(stream))["asked"] == 0 and (await told(stream))["asked"] == 4
        states.append({"seq": 4, "at": 2.0})  # only later: nothing new
        assert await anext(stream) == b": nothing new\n\n"
        states.append({"seq": 5, "at": 3.0})
        assert (await told(stream))["seq"] == 5
        ended.set()
        assert [piece async for piece in stream][-1] == b"event: ended\ndata: {}\n\n"

    asyncio.run(read())


def test_a_look_that_fails_ends_a_stream_only_where_it_goes_on_failing(quick: None) -> None:
    states: list[Any] = [{"seq": 4, "at": 1.0}]

    async def read() -> None:
        stream = live_stream(lambda seq: states[-1] | {"asked": seq}, threading.Event())
        assert (await told(stream))["seq"] == 4
        states.append(None)  # a look at it raises
        assert await anext(stream) == b": nothing new\n\n"
        states.append({"seq": 5, "at": 2.0})
        found = await told(stream)
        assert (found["seq"], found["asked"]) == (5, 4)
        states.append(None)
        assert {piece async for piece in stream} == {b": nothing new\n\n"}, "and it ends"

    asyncio.run(read())


def moment(secs: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + secs, timezone.utc)


def row(txid: int, epoch: int | None, **more: Any) -> dict[str, Any]:
    known = {
        "txid": txid,
        "attempt_id": 0,
        "epoch": epoch,
        "begun_at": moment(txid),
        "decided_at": moment(txid + 1),
        "published_at": moment(txid + 3),
        "tables": [{"state": "counts", "rows": 7}],
        "failures": [],
    }
    return known | more


def test_leaderships_are_the_epochs_of_kept_transactions() -> None:
    rows = [row(2, 1), row(1, 1), row(3, 4, decided_at=None, published_at=None)]
    newest, first = leaderships(part_of(one) for one in rows)
    assert (newest["epoch"], newest["first_at"], newest["transactions"]) == (4, None, 1)
    assert (first["epoch"], first["transactions"]) == (1, 2)
    assert (first["first_at"], first["last_at"]) == (moment(2).timestamp(), moment(3).timestamp())


def test_what_takes_long_to_find_is_looked_for_less_often() -> None:
    now, takes = 0.0, 0.05
    looks: list[float] = []

    def find() -> int:
        nonlocal now
        looks.append(now)
        now += takes
        return len(looks)

    recent = Recent(find, 2.0, lambda: now)
    for _ in range(100):
        recent()
        now += 0.1
    assert looks[1] == pytest.approx(2.0, abs=0.11) and len(looks) == 5
    looks.clear()
    takes, now = 3.0, 100.0
    for _ in range(1000):
        recent()
        now += 0.1
    assert [round(later - sooner) for sooner, later in zip(looks, looks[1:])] == [33, 33, 33]
    recent.forget()
    looks.clear()
    takes = 30.0
    recent()
    assert looks, "what was forgotten is looked for at once"
    now += 59.0
    recent()
    assert len(looks) == 1, "a minute is the most"
    now += 2.0
    assert recent() and len(looks) == 2


def test_what_is_forgotten_while_it_is_looked_for_is_looked_for_again() -> None:
    now, looks = 0.0, 0

    def find() -> int:
        nonlocal now, looks
        looks += 1
        now += 1.0
        if looks == 1:
            recent.forget()  # as a replay does, which is asked for meanwhile
        return looks

    recent = Recent(find, 2.0, lambda: now)
    assert (recent(), recent(), recent()) == (1, 2, 2)


def test_what_moves_is_looked_for_again_soon() -> None:
    now, looks = 0.0, 0

    def find() -> int:
        nonlocal now, looks
        looks, now = looks + 1, now + 6.0
        return looks

    recent = Recent(find, 0.2, lambda: now, rare_secs=2.0)
    assert recent() == 1
    now += 1.9
    assert recent() == 1
    now += 0.2
    assert recent() == 2


def test_the_past_of_a_warehouse_is_told_as_a_feed_tells_it() -> None:
    failure = {"attempt_id": 0, "failed_at": moment(5), "error": "no"}
    found = past_records({"b": [row(1, 1, failures=[failure])], "a": [row(2, 1, begun_at=None)]})
    assert found["all"] is True and [one["txid"] for one in found["transactions"]] == [1, 2]
    assert found["transactions"][0]["durations"] == {"process": 1000.0, "publish": 2000.0}
    assert found["transactions"][1]["durations"] == {"publish": 2000.0}
    assert [(one["group"], one["txid"], one["error"]) for one in found["failures"]] == [("b", 1, "no")]


def test_the_plan_of_a_warehouse_is_its_streams_and_states() -> None:
    made = stored_plan("lines", [{"stream": "lines", "spout": "FileSpout"}], ["counts", "seen"])
    assert [(node["label"], node["depth"]) for node in made["nodes"]] == [
        ("FileSpout", 0),
        ("batches of lines", 1),
        ("counts", 2),
        ("seen", 2),
    ]
    ids = {node["id"] for node in made["nodes"]}
    assert len(made["edges"]) == 3 and all({edge["from"], edge["to"]} <= ids for edge in made["edges"])


def test_values_are_shown_as_json_can_say_them() -> None:
    assert shown_value({"n": 2**60, "x": float("nan"), 3: [moment(0), b"a"]}) == {
        "n": str(2**60),
        "x": "nan",
        "3": ["2023-11-14 22:13:20+00:00", "b'a'"],
    }
