"""A batch is offered to be given up only where its own content is the cause."""

from __future__ import annotations

import pytest

from trident.coordinators.errors import (
    BatchError,
    BatchOutOfMemory,
    BatchTimeout,
    BrokersAway,
    FailedException,
    SourceError,
    StateAway,
    StorageProblem,
    StoreUnreachable,
    TableError,
    UserFunctionError,
    ValueDoesNotFit,
    ZooKeeperUnreachable,
)
from trident.coordinators.retries import after_giving_up

SPARKS = '[CAST_INVALID_INPUT] The value "x" of the type "STRING" cannot be cast to "BIGINT". SQLSTATE: 22018'


def by_user(said: str) -> UserFunctionError:
    return UserFunctionError(f"each(split) failed at split.py:3 in split: {said}", operation="each", location="s:3")


@pytest.mark.parametrize(
    ("error", "same", "offered"),
    [
        (by_user("ValueError: no number"), False, True),
        (by_user("KeyError: 'price'"), True, True),
        (FailedException("not these"), False, True),
        (ValueDoesNotFit("too large", state="s", key="k"), True, True),
        (SourceError("a message cannot be parsed"), False, True),
        (RuntimeError(SPARKS), False, True),
        (BatchError("the same row again"), True, True),
        (StorageProblem("a disk is full"), False, False),
        (StoreUnreachable("503"), True, False),
        (BatchOutOfMemory("an executor"), False, False),
        (BatchTimeout("60 s"), True, False),
        (ZooKeeperUnreachable("no server"), False, False),
        (StateAway("PostgreSQL"), False, False),
        (BrokersAway("no broker"), False, False),
        (by_user("ConnectionRefusedError: [Errno 111] Connection refused"), True, False),
        (by_user("requests.exceptions.ConnectionError: api:443"), True, False),
        (by_user("psycopg2.OperationalError: server closed the connection"), True, False),
        (by_user("OSError: [Errno 28] No space left on device"), True, False),
        (TableError("a log entry cannot be read"), False, False),
        (OSError("input/output error"), False, False),
        (RuntimeError("java.lang.IllegalStateException"), False, False),
        (None, False, False),
    ],
    ids=lambda value: str(value)[:50],
)
def test_skip_is_offered_where_the_content_is_the_cause(error, same: bool, offered: bool) -> None:
    said = after_giving_up("sales", 7, error, same)
    assert ("trident skip sales --txid 7" in said) == offered
    assert "no row is lost" in said
    assert not offered or "its rows are lost" in said


def test_a_cause_below_counts() -> None:
    error = by_user("RuntimeError: it failed")
    error.__cause__ = ConnectionResetError("by peer")
    assert "trident skip" not in after_giving_up("sales", 7, error, True)
