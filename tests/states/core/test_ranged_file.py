"""A file that is read range by range, or part by part: as a file on a disk, however little a store gives at once."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.states.core.remote_files import AppendedParts, RangedFile


@given(
    st.binary(max_size=60),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(-70, 70), st.integers(0, 2), st.integers(-1, 70))),
)
def test_it_is_read_as_a_file_is(data: bytes, most: int, reads: list[tuple[int, int, int]]) -> None:
    def read_range(start: int, count: int) -> bytes:
        assert 0 <= start < start + count <= len(data)
        return data[start : start + min(count, most)]

    file = io.BufferedReader(RangedFile(len(data), read_range), 8)
    known = io.BytesIO(data)
    for offset, whence, count in reads:
        place = max(0, offset + (0, known.tell(), len(data))[whence])
        assert file.seek(place) == known.seek(place)
        assert file.read(count) == known.read(count)


def test_a_store_that_gives_nothing_is_an_error_and_no_end() -> None:
    with pytest.raises(OSError, match="gave 0 of 5 bytes; expected: all of them"):
        RangedFile(5, lambda start, count: b"").readall()


def test_parts_are_read_side_by_side() -> None:
    """A ledger of files can have thousands, for each of which a store takes 30 ms: a take-over waits for them."""
    both = threading.Barrier(2)

    def read(path: str) -> bytes:
        both.wait(20)
        return b"ab"

    store: Any = SimpleNamespace(read=read, list=lambda _: [f"{at:020d}" for at in (2, 0)])
    assert AppendedParts(store, "s3a://lake/ledger").read(1) == b"bab"
