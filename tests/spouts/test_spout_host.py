"""The backlog of a batch group: the sum over its streams, of what all of them know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trident.spouts.contracts import Backlog
from trident.spouts.host import TridentSpoutHost


def stream(found: Any) -> Any:
    def backlog() -> Backlog | None:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(backlog=backlog)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([Backlog(rows=3, bytes=30, files=1), Backlog(rows=4, bytes=5, files=6)], {"rows": 7, "bytes": 35, "files": 7}),
        ([Backlog(rows=0), Backlog(rows=0, files=0)], {"rows": 0}),
        ([Backlog(rows=0), None], {}),
        ([Backlog(rows=0), Backlog()], {}),
        ([Backlog(rows=0), OSError("away")], {}),
        ([Backlog(rows=5, files=2), Backlog(files=1)], {"files": 3}),
        ([], {}),
    ],
)
def test_what_one_stream_does_not_know_is_unknown_for_all(found: list[Any], expected: dict[str, int]) -> None:
    host = TridentSpoutHost({str(number): stream(one) for number, one in enumerate(found)})
    host.ask_backlog()
    assert host.backlog() == expected
