"""06: joins within a batch, and over batches: orders with their payments.

    python examples/06_joins.py

Three spouts meet in one batch group: transaction N joins batch N of each, and
commits all that comes of it at once. A payment that comes in another batch than
its order is not found by that, and spouts of files or queues cut their rows
into batches as they please: hence the warning that is switched off here, where
the batches are written down. To join over batches, keep the rows in a state: the
last part keeps orders and payments by their id until both are there.
"""

import warnings

from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, JoinType, SameBatchOnlyWarning, TridentTopology, expr

warnings.filterwarnings("ignore", category=SameBatchOnlyWarning)

orders = [
    [("o1", "ann", 10.0), ("o2", "bob", 20.0)],
    [("o3", "ann", 5.0), ("o4", "eve", 7.5), ("o5", "bob", 2.5)],
    [("o9", "eve", 1.0)],
]
payments = [
    [("o1", "card")],
    [("o3", "card"), ("o5", "cash"), ("o9", "card")],
    [("o2", "cash")],
]
parcels = [
    [("o1", "p-100"), ("o2", "p-101")],
    [("o3", "p-102"), ("o3", "p-103")],
]

topology = TridentTopology("joins")
order = topology.new_stream("orders", FixedBatchSpout("order_id string, who string, amount double", orders))
payment = topology.new_stream("payments", FixedBatchSpout("order string, method string", payments))
parcel = topology.new_stream("parcels", FixedBatchSpout("order string, parcel string", parcels))

# Two streams, in PySpark's words: how = inner, left, right or full.
order.join(payment, [["order_id"], ["order"]]).partition_persist(DeltaAppend("paid"))

# Three, in Trident's: a type per side. An order stays without payment and parcel; a payment without order goes.
everything = topology.join(
    order,
    payment,
    parcel,
    keys=["order_id", "order", "order"],
    type=JoinType.mixed(JoinType.INNER, JoinType.OUTER, JoinType.OUTER),
)
everything.partition_persist(DeltaAppend("joined_orders"))


def is_open(method: str, parcel: str) -> bool:
    return method is None or parcel is None


everything.filter("method, parcel", is_open).partition_persist(DeltaAppend("open_orders"))


class Pair:
    """An order and its payment, whichever comes first, and whether they have met in this transaction."""

    def init(self, batch_id) -> list:
        return [None, None, None, False]

    def resume(self, batch_id, who, amount, method, met) -> list:
        return [who, amount, method, False]

    def aggregate(self, pair: list, who, amount, method) -> None:
        alone = None in pair[:3]
        for place, value in enumerate((who, amount, method)):
            if value is not None:
                pair[place] = value
        pair[3] = pair[3] or (alone and None not in pair[:3])

    def complete(self, pair: list) -> tuple:
        return tuple(pair)


# Both streams in one form, one state by the id; a pair goes on in the transaction in which it met.
sides = order.with_column("method", expr("cast(null as string)")).merge(
    payment.select(
        expr("order as order_id"), expr("cast(null as string) as who"), expr("cast(null as double) as amount"), "method"
    )
)
pairs = sides.group_by("order_id").persistent_aggregate(
    DeltaMapState("pairs"), "who, amount, method", Pair(), "who string, amount double, method string, met boolean"
)
met = pairs.new_values_stream().filter("met", bool).project("order_id, who, method")
met.partition_persist(DeltaAppend("paid_ever"))

if __name__ == "__main__":
    query = topology.start()
    query.process_all_available()
    print("paid:")
    query.snapshot("paid").orderBy("order_id").show()
    print("every order, with what there is of it:")
    query.snapshot("joined_orders").orderBy("order_id", "parcel").show()
    print("paid, whenever:")
    query.snapshot("paid_ever").orderBy("order_id").show()
    print("open in their batch:", ", ".join(sorted(row.order_id for row in query.snapshot("open_orders").collect())))
    query.stop()
