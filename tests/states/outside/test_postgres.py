"""PostgresState and PostgresMap on a real server: lost answers, kills, stale coordinators, unfit tables."""

from __future__ import annotations

import datetime
import decimal
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.servers.postgres_fixtures import PASSWORD, PostgresServer, server_programs
from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS
from tests.wire.relay import Act, AnyBytes, Relay
from trident import (
    DeltaAppend,
    FixedBatchSpout,
    OutsideMark,
    OutsidePart,
    OutsideRows,
    PostgresMap,
    PostgresState,
    TridentTopology,
    Upsert,
)
from trident.coordinators import faults
from trident.coordinators.errors import (
    ForeignMarks,
    SchemaMismatch,
    StaleEpoch,
    StateAway,
    StateLostTransactions,
    TridentError,
)
from trident.states.core.tables import DELETED_COLUMN
from trident.states.maps import postgres_store
from trident.states.maps.postgres_store import connection_to, durable_transaction
from trident.udf.types import as_schema

WORDS = OutsideRows("t", StructType().add("word", "string").add("n", "long"))


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.execute("DROP TABLE IF EXISTS words, trident_marks, trident_epochs, counts")
    postgres_server.execute("CREATE TABLE words (word text PRIMARY KEY, n bigint, at timestamptz DEFAULT now())")
    yield postgres_server
    faults.disarm()


@pytest.fixture
def checks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits is looked after within a quarter of a second."""
    monkeypatch.setattr(postgres_store, "_FIRST_CHECK_SECS", 0.2)
    monkeypatch.setattr(postgres_store, "_NEXT_CHECK_SECS", 0.05)


@pytest.fixture
def state(server: PostgresServer) -> PostgresState:
    made = PostgresState(server.url, "words")
    made.check_store(WORDS)
    return made


def part(txid: int, epoch: int = 1, *, number: int = 0, upserts: bool = False) -> OutsidePart:
    mark = OutsideMark("life", epoch, txid, 0)
    return OutsidePart("t", "words", number, mark, ("word",) if upserts else (), upserts)


def rows(*words: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"word": list(words), "n": pa.array(range(len(words)), pa.int64())})


def stored(server: PostgresServer) -> list[str]:
    return [word for (word,) in server.execute("SELECT word FROM words ORDER BY word")]


# --- a part


def test_rows_are_written_once_and_a_stale_coordinator_is_refused_each_time(server, state) -> None:
    for epoch in (1, 1, 2):
        state.publish(part(1, epoch), rows("a", "b"))
    assert state.take_over("t", "life", 3) == {-1: OutsideMark("life", 3, 0, 0), 0: OutsideMark("life", 3, 1, 0)}
    for txid in range(2, 102):
        with pytest.raises(StaleEpoch):
            state.publish(part(txid, 2), rows("zombie"))
    state.publish(part(2, 3), rows("c"))
    assert stored(server) == ["a", "b", "c"]


def test_a_take_over_closes_parts_that_have_no_mark_and_not_to_itself(server, state) -> None:
    assert set(state.take_over("t", "life", 2)) == {-1}
    for number in (0, 7):
        with pytest.raises(StaleEpoch, match="belongs to a later coordinator"):
            state.publish(part(1, 1, number=number), rows("zombie"))
        state.publish(part(1, 2, number=number), rows(f"ours {number}"))
    assert stored(server) == ["ours 0", "ours 7"]


def test_a_take_over_waits_for_a_part_that_is_being_written(server, state) -> None:
    """Else the part would commit behind it, unseen: it had no mark that the take-over could change."""
    state.take_over("t", "life", 1)
    writes, goes_on, marks = threading.Event(), threading.Event(), {}

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        writes.set()
        assert goes_on.wait(30)

    publishes = threading.Thread(target=lambda: state.publish(part(1), slowly()))
    takes = threading.Thread(target=lambda: marks.update(state.take_over("t", "life", 2)))
    publishes.start()
    assert writes.wait(30)
    takes.start()
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    assert eventually(lambda: server.execute(waiting) or marks, 25) and not marks
    goes_on.set()
    publishes.join(30)
    takes.join(30)
    assert marks[0] == OutsideMark("life", 2, 1, 0) and stored(server) == ["a"]


def test_another_life_is_refused_and_its_marks_stay(server, state) -> None:
    state.take_over("t", "life", 1)
    state.publish(part(1), rows("a"))
    before = server.execute("SELECT * FROM trident_marks ORDER BY part")
    with pytest.raises(ForeignMarks):
        state.take_over("t", "other", 2)
    assert server.execute("SELECT * FROM trident_marks ORDER BY part") == before
    adopted = replace(state, adopt=True).take_over("t", "other", 2)
    assert set(adopted.values()) == {OutsideMark("other", 2, 0, 0)}


def test_a_server_that_lost_a_transaction_takes_no_later_one(server, state) -> None:
    state.take_over("t", "life", 2)
    for txid in (41, 42):
        state.publish(part(txid, 2), rows(f"{txid}"))
    server.execute("UPDATE trident_marks SET txid = 41 WHERE part = 0")  # as a replica that lags
    server.execute("UPDATE trident_marks SET epoch = 1")  # and that does not know this coordinator yet
    for number in (0, 1):
        with pytest.raises(StateLostTransactions):
            state.publish(replace(part(43, 2, number=number), known=(42, 0)), rows("43"))
    server.execute("UPDATE trident_marks SET txid = 42 WHERE part = 0")
    state.publish(replace(part(43, 2, number=1), known=(42, 0)), rows("43"))
    with pytest.raises(StaleEpoch):
        state.publish(part(44, 1, number=5), rows("zombie"))


@pytest.mark.usefixtures("checks_soon")
@pytest.mark.parametrize("stays", [False, True], ids=["the connection ends", "the connection stays"])
def test_a_lost_answer_of_commit_is_looked_up_and_not_repeated(server, state, stays: bool) -> None:
    proxy = Relay(0, server.port, AnyBytes("COMMIT"))
    through = replace(state, url=server.url.replace(str(server.port), str(proxy.port)))
    through.publish(part(1), rows("a"))
    lost = proxy.arm("COMMIT", Act.UNHEARD if stays else Act.UNANSWERED)
    with pytest.raises(StateAway):
        through.publish(part(2), rows("b"))
    assert lost.met.is_set() and stored(server) == ["a", "b"]
    through.publish(part(2), rows("b"))  # the primary key would refuse a second one
    assert stored(server) == ["a", "b"]
    proxy.close()


def test_an_upsert_inserts_updates_and_deletes(server, state) -> None:
    def changes(*lines: tuple[str, int, bool]) -> Iterator[pa.RecordBatch]:
        words, numbers, gone = zip(*lines)
        yield pa.record_batch({"word": list(words), "n": list(numbers), DELETED_COLUMN: list(gone)})

    state.check_store(replace(WORDS, keys=("word",), upserts=True))
    state.publish(part(1, upserts=True), changes(("a", 1, False), ("b", 2, False), ("never there", 0, True)))
    for _ in range(2):
        state.publish(part(2, upserts=True), changes(("a", 7, False), ("b", 0, True), ("c", 3, False)))
    assert server.execute("SELECT word, n FROM words ORDER BY word") == [("a", 7), ("c", 3)]


def test_an_upsert_of_keys_alone_is_a_set(server, state) -> None:
    def changes(**gone: bool) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"word": list(gone), DELETED_COLUMN: list(gone.values())})

    state.publish(part(1, upserts=True), changes(a=False, b=False))
    state.publish(part(2, upserts=True), changes(a=False, b=True, c=False))
    assert server.execute("SELECT word, n FROM words ORDER BY word") == [("a", None), ("c", None)]


def test_values_come_back_as_they_were(server) -> None:
    """Among them those that end COPY's data, or a line of it, where they are not escaped."""
    server.execute("DROP TABLE words")
    server.execute(
        "CREATE TABLE words (t text, i bigint, f double precision, d numeric(20, 4), b boolean, day date, "
        "at timestamptz, plain timestamp, bytes bytea)"
    )
    utc = datetime.timezone.utc
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
    lines = [
        ("\\.", -(2**63), 0.1, decimal.Decimal("1.5000"), True, datetime.date(1, 1, 1), moment.replace(tzinfo=utc)),
        ("\\.\n\\.\r\n\t\\N", 2**63 - 1, float("inf"), None, False, datetime.date(9999, 12, 31), None),
        ("", 0, 1e-300, decimal.Decimal("-0.0001"), None, None, moment.replace(tzinfo=utc, year=4)),
        ("\\N", None, None, None, None, None, None),
        (None, 1, -0.0, decimal.Decimal("9999999999999999.9999"), True, None, None),
        ("ünï \U0001f600 ' \" ,", 1, 5e-324, None, True, None, None),
    ]
    ends = [(moment, b"\x00\\x\n"), (None, b""), (moment, None), (None, None), (moment, b"\xff"), (None, b"a")]
    whole = [(*line, *end) for line, end in zip(lines, ends)]
    ddl = "t string, i bigint, f double, d decimal(20,4), b boolean, day date, at timestamp, "
    ddl += "plain timestamp_ntz, bytes binary"
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.decimal128(20, 4), pa.bool_(), pa.date32()]
    kinds += [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.binary()]
    names = [piece.split()[0] for piece in ddl.replace("(20,4)", "").split(", ")]
    state = PostgresState(server.url, "words")
    given = OutsideRows("t", as_schema(ddl, "the test"))
    state.check_rows(given)
    state.check_store(given)
    columns = [pa.array(column, kind) for column, kind in zip(zip(*whole), kinds)]
    state.publish(part(1), iter([pa.record_batch(columns, names=names)]))
    assert server.execute("SELECT * FROM words") == whole


@pytest.mark.parametrize(
    ("ddl", "upserts", "message"),
    [
        ("word text", False, "no column 'n'"),
        ("word text, n integer", False, "column 'n' is integer; a field of type bigint needs bigint or numeric"),
        ("word text, n bigint, who text NOT NULL", False, "'who' is NOT NULL, has no default, and no field"),
        ("word text, n bigint GENERATED ALWAYS AS IDENTITY", False, "the database fills column 'n' itself"),
        ("word text, n bigint", True, "cannot tell the rows of words by word"),
        ("word text, n numeric(9, -1)", False, "would round"),
        ("word character(9), n bigint", False, "column 'word' is character; a field of type string needs text or"),
        ("word varchar(9), n bigint", False, "varchar with a length, which cuts blanks"),
        ("word uuid PRIMARY KEY, n bigint", True, "is uuid; a key of type string needs text or character varying"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_named_with_the_column(server, ddl, upserts, message) -> None:
    server.execute("DROP TABLE words")
    server.execute(f"CREATE TABLE words ({ddl})")
    with pytest.raises(SchemaMismatch, match=message.replace("(", r"\(")):
        PostgresState(server.url, "words").check_store(
            replace(WORDS, keys=("word",) if upserts else (), upserts=upserts)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE trident_marks SET UNLOGGED", "the table trident_marks is unlogged"),
        (
            "ALTER TABLE trident_marks DROP CONSTRAINT trident_marks_pkey",
            "cannot tell the rows of trident_marks by topology, state, part",
        ),
    ],
)
def test_a_table_of_marks_that_could_lose_or_double_one_is_refused(server, state, change: str, message: str) -> None:
    server.execute(change)
    with pytest.raises(SchemaMismatch, match=message):
        state.check_store(WORDS)


def test_each_right_that_publishing_needs_is_looked_at(server, state) -> None:
    server.execute("DROP ROLE IF EXISTS clerk")
    server.execute(f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'")
    server.execute("GRANT USAGE ON SCHEMA public TO clerk")
    server.execute("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC")
    server.execute("ALTER TABLE trident_marks ENABLE ROW LEVEL SECURITY")
    clerk = replace(state, url=server.url.replace("tester:", "clerk:"))
    upserts = replace(WORDS, keys=("word",), upserts=True)
    try:
        for message, mend in [
            ("no right to INSERT, SELECT, UPDATE, DELETE on words", "GRANT ALL ON words TO clerk"),
            ("no right to TEMPORARY on the database", "GRANT TEMPORARY ON DATABASE postgres TO clerk"),
            ("no right to INSERT, UPDATE on trident_marks", "GRANT INSERT, UPDATE ON trident_marks TO clerk"),
            ("row security hides rows of trident_marks", "ALTER TABLE trident_marks DISABLE ROW LEVEL SECURITY"),
        ]:
            server.execute("GRANT SELECT ON trident_marks TO clerk")
            with pytest.raises(SchemaMismatch, match=message):
                clerk.check_store(upserts)
            server.execute(mend)
        clerk.check_store(upserts)
        clerk.take_over("t", "life", 1)
        clerk.publish(part(1), rows("a"))
    finally:
        server.execute("DROP OWNED BY clerk")
        server.execute("DROP ROLE clerk")
        server.execute("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
    assert stored(server) == ["a"]


def test_a_writer_that_stops_amid_its_transaction_does_not_keep_its_locks(server) -> None:
    """The server asks the writer's system, and ends a transaction that no statement follows in."""
    with connection_to(server.url, "the test", "no") as connection, durable_transaction(connection) as cursor:
        names = ["idle_in_transaction_session_timeout", "tcp_keepalives_idle", "tcp_user_timeout", "lock_timeout"]
        now = [cursor.execute(f"SHOW {name}").fetchone()[0] for name in names]
    assert now == ["1min", "10", "30000", "30s"]


def test_rows_are_read_before_the_transaction_begins(server, state) -> None:
    seen = {}

    def asks() -> Iterator[pa.RecordBatch]:
        seen["open"] = server.execute("SELECT query FROM pg_stat_activity WHERE xact_start < now()")
        yield from rows("a")

    state.publish(part(1), asks())
    assert seen == {"open": []} and stored(server) == ["a"]


@pytest.mark.parametrize(
    ("was", "wrong"), [("tester:", "nobody:"), ("s3cret", "other"), ("/postgres", "/nowhere")], ids=str
)
def test_a_login_that_is_refused_does_not_pass_by_itself(server, state, was: str, wrong: str) -> None:
    with pytest.raises(TridentError) as caught:
        replace(state, url=server.url.replace(was, wrong)).check_store(WORDS)
    assert not isinstance(caught.value, StateAway), caught.value


def test_a_statement_timeout_is_a_refusal(server, state) -> None:
    timed = replace(state, url=f"{server.url}?options=-c%20statement_timeout%3D200")
    server.execute(
        "CREATE OR REPLACE FUNCTION sleeps() RETURNS trigger AS $$ BEGIN PERFORM pg_sleep(20); RETURN NEW; END $$ "
        "LANGUAGE plpgsql"
    )
    server.execute("CREATE TRIGGER slow BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION sleeps()")
    with pytest.raises(TridentError, match="statement timeout") as caught:
        timed.publish(part(1), rows("a"))
    assert not isinstance(caught.value, StateAway)


def test_no_message_has_values_of_rows(server, state) -> None:
    server.execute("ALTER TABLE words ADD CONSTRAINT short CHECK (length(word) < 20)")
    secret = "of-the-customer-4711"
    for words, message in [
        ((secret[:9], secret[:9]), "words_pkey"),
        ((secret,), '"short"'),
        ((f"{secret[:9]}\0",), "invalid byte sequence"),
    ]:
        with pytest.raises(TridentError, match=message) as caught:
            state.publish(part(1), rows(*words))
        assert secret[:9] not in str(caught.value), caught.value
    server.execute("DROP TABLE words")
    server.execute("CREATE TABLE words (word json, n bigint)")
    with pytest.raises(TridentError, match="invalid input syntax for type json") as caught:
        state.publish(part(1), rows('of"-the-" customer'))
    assert "the" not in caught.value.found and "customer" not in str(caught.value)


def test_what_forgets_and_what_is_not_there_is_refused(server) -> None:
    server.execute("ALTER TABLE words SET UNLOGGED")
    with pytest.raises(SchemaMismatch, match="unlogged"):
        PostgresState(server.url, "words").check_store(WORDS)
    with pytest.raises(SchemaMismatch, match="no table nowhere"):
        PostgresState(server.url, "nowhere").check_store(WORDS)


def test_no_message_has_the_password(server, state) -> None:
    wrong = replace(state, url=server.url.replace("/postgres", "/nowhere"))
    with pytest.raises(TridentError) as caught:
        wrong.check_store(WORDS)
    for text in (str(caught.value), repr(state), repr(PostgresMap(server.url, "counts"))):
        assert PASSWORD not in text and "tester:" not in text


def test_of_several_servers_the_one_that_answers_is_taken(server) -> None:
    url = server.url.replace("@", "@127.0.0.1:1,")
    with connection_to(url, "a test", "it cannot be asked") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_row_that_the_table_refuses_is_a_refusal_and_nothing_of_its_part_is_written(server, state) -> None:
    with pytest.raises(TridentError, match="duplicate key") as caught:
        state.publish(part(1), rows("a", "a"))
    assert not isinstance(caught.value, StateAway) and stored(server) == []
    state.publish(part(1), rows("a"))
    assert stored(server) == ["a"]


@pytest.mark.long
@pytest.mark.usefixtures("checks_soon")
def test_a_server_that_is_stopped_is_away_and_a_slow_one_is_waited_for(server, state) -> None:
    with connection_to(server.url, "a test", "no") as connection:
        assert connection.execute("SELECT pg_sleep(1), 7").fetchone()[1] == 7
    quick = replace(state, url=f"{server.url}?connect_timeout=2")
    quick.publish(part(1), rows("a"))
    with server.stopped(), pytest.raises(StateAway):
        quick.publish(part(2), rows("b"))
    quick.publish(part(3), rows("c"))
    assert stored(server) == ["a", "c"]


# --- the map


@pytest.mark.long
def test_a_map_keeps_what_is_put_and_refuses_an_older_epoch(server) -> None:
    store = PostgresMap(server.url, "counts")
    keys = [("a", 1), ("b" * 10_000,), (None, "\0")]
    assert store.multi_get(keys) == [None] * 3
    store.multi_put([*keys, keys[0]], [1, {"x": [1.5]}, "z", 2], epoch=5)
    assert store.multi_get([keys[1], ("nowhere",), keys[0]]) == [{"x": [1.5]}, None, 2]
    store.multi_put([keys[2]], [None], epoch=6)
    assert dict(store.items()) == {keys[0]: 2, keys[1]: {"x": [1.5]}}
    for _ in range(100):
        with pytest.raises(StaleEpoch):
            store.multi_put([keys[0]], [99], epoch=5)
    assert store.multi_get([keys[0]]) == [2]
    store.clear()
    store.multi_put([keys[0]], [3], epoch=1)
    assert list(store.items()) == [(keys[0], 3)]


def test_old_values_are_never_read_from_a_standby(server: PostgresServer) -> None:
    programs = server_programs()
    assert programs is not None
    standby = PostgresServer(programs, wal_level="replica")
    try:
        standby.start()
        PostgresMap(standby.url, "counts").multi_put([("a",)], [1], epoch=1)
        PostgresMap(server.url, "counts").multi_put([("a",)], [2], epoch=1)
        standby.kill()
        (standby.folder / "data" / "standby.signal").touch()
        standby.start()
        postgres_store._idle.clear()  # connections to the server that was killed
        for url in (standby.url, f"{standby.url}?target_session_attrs=any"):
            with pytest.raises(StateAway, match="standby|read-only|recovery"):
                PostgresMap(url, "counts").multi_get([("a",)])
        of_both = server.url.replace("@", f"@127.0.0.1:{standby.port},")
        assert PostgresMap(of_both, "counts").multi_get([("a",)]) == [2]
    finally:
        standby.kill()
        shutil.rmtree(standby.folder, ignore_errors=True)


# --- a topology


def topology(server: PostgresServer) -> TridentTopology:
    made = TridentTopology("words")
    batches = [[("a", 1), ("b", 1)], [("a", 2)], [("c", 3)], [("b", 4)]]
    stream = made.new_stream("words", FixedBatchSpout("word string, n long", batches))
    stream.partition_persist(DeltaAppend("rows"))
    stream.partition_persist(PostgresState(server.url, "words"), "word, n", Upsert("word"))
    return made


@pytest.mark.long
def test_a_topology_outlives_a_kill_of_the_server_and_of_its_coordinator(server, start) -> None:
    faults.arm("publish.outside:hang:2")
    first = start(topology(server), max_attempts=1)
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    server.kill()
    first._zk._client.stop()  # type: ignore[union-attr]
    second = start(topology(server), max_attempts=1)
    server.start()
    second.process_all_available(WAIT_SECS)
    faults.disarm()
    first.stop(WAIT_SECS, compact=False)
    assert server.execute("SELECT word, n FROM words ORDER BY word") == [("a", 2), ("b", 4), ("c", 3)]
    marks = server.execute("SELECT topology, state, part, txid FROM trident_marks")
    assert sorted(marks) == [("words", "words", -1, 0), ("words", "words", 0, 4)]
