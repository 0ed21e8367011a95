"""A join of independent spouts, and an Upsert with order_by, say that they work within a batch only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.streams.stream_helpers import RowsSpout
from trident import DeltaAppend, DeltaMapState, SameBatchOnlyWarning, Stream, TridentTopology, Upsert


class Counts:
    def init(self, batch_id: Any) -> list:
        return [0]

    def execute(self, state: list, stream_index: int, *values: Any) -> None:
        state[0] += 1

    def complete(self, state: list) -> int:
        return state[0]


def streams() -> tuple[TridentTopology, Stream, Stream]:
    topology = TridentTopology("joins")
    orders = topology.new_stream("orders", RowsSpout("id string, n long"))
    return topology, orders, topology.new_stream("payments", RowsSpout("id string, m long"))


MEET: dict[str, Callable[[TridentTopology, Stream, Stream], Stream]] = {
    "join": lambda t, a, b: a.join(b, "id"),
    "outer join of three": lambda t, a, b: t.join(a, a.rename({"n": "o"}), b, keys="id", type="full"),
    "behind a merge": lambda t, a, b: a.merge(a).join(b.filter("m", bool), "id"),
    "multi_reduce": lambda t, a, b: t.multi_reduce(a.group_by("id"), b.group_by("id"), reducer=Counts(), outputs="c"),
    "multi_reduce of all": lambda t, a, b: t.multi_reduce(a, b, reducer=Counts(), outputs="c"),
}
TOGETHER: dict[str, Callable[[TridentTopology, Stream, Stream], Stream]] = {
    "self join": lambda t, a, b: a.join(a.rename({"n": "o"}), "id"),
    "branches": lambda t, a, b: a.filter("n", bool).join(a.each("n", lambda n: n, "o long").project("id, o"), "id"),
    "a merge that has the other": lambda t, a, b: a.merge(b.rename({"m": "n"})).join(b, "id"),
    "new values of a state that both feed": lambda t, a, b: a.join(
        a.partition_persist(DeltaMapState("s"), None, Upsert("id")).new_values_stream().rename({"n": "o"}), "id"
    ),
    "merge": lambda t, a, b: a.merge(b.rename({"m": "n"})),
    "multi_reduce of branches": lambda t, a, b: t.multi_reduce(a, a, reducer=Counts(), outputs="c"),
}


@pytest.mark.parametrize("how", MEET)
def test_independent_spouts_warn_at_the_users_line_and_in_explain(how: str) -> None:
    topology, orders, payments = streams()
    with pytest.warns(
        SameBatchOnlyWarning,
        match="'orders' and 'payments'.*one transaction.*with_watermark.*within='10 minutes'.*resume",
    ) as caught:
        MEET[how](topology, orders, payments).partition_persist(DeltaAppend("out"))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "note: only rows of one transaction meet: streams 'orders' and 'payments'" in topology.explain()


@pytest.mark.parametrize("how", TOGETHER)
def test_branches_of_one_spout_do_not_warn(how: str) -> None:
    topology, orders, payments = streams()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TOGETHER[how](topology, orders, payments).partition_persist(DeltaAppend("out"))
        payments.partition_persist(DeltaAppend("payments"))
    assert "only rows of one" not in topology.explain()


def test_explain_says_that_an_upsert_orders_within_a_batch_only() -> None:
    topology, orders, payments = streams()
    orders.partition_persist(DeltaMapState("latest"), None, Upsert("id", order_by="n"))
    payments.partition_persist(DeltaMapState("last"), None, Upsert("id"))
    notes = [line.strip() for line in topology.explain().splitlines() if "note:" in line]
    assert notes == [
        "note: ordered by n within a batch only: between batches the later transaction wins, whatever its value"
    ]
    assert "within a batch only" in (Upsert.__doc__ or "")
