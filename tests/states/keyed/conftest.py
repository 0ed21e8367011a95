"""A keyed state and an append that live long enough for most tests; two MERGEs make them, once for all tests."""

from __future__ import annotations

import pytest

from tests.states.keyed_helpers import Group, append, compactor_of, keyed
from trident.states.delta.kernel import KernelEngine


@pytest.fixture(scope="session")
def merged_tables(spark, tmp_path_factory) -> Group:
    """Transactions 1 to 6 in two states, the keyed one merged up to 2 and then up to 5. To be read only."""
    group = Group(spark, KernelEngine(spark), tmp_path_factory.mktemp("merged"), keyed(), append())
    for txid in range(1, 7):
        rows = {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)], "lines": [(f"line {txid}",)]}
        group.publish(txid, rows)
    for txid in (2, 5):
        compactor_of(group).merge_once(txid, force=True)
    return group


@pytest.fixture
def merged(merged_tables: Group, tmp_path) -> Group:
    """A copy of these tables, to go on with."""
    return merged_tables.copied_to(tmp_path / "merged")
