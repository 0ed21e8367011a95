"""06: joins within a batch: orders with their payments, and those that nobody has paid or shipped.

    python examples/06_joins.py

Three spouts meet in one batch group: transaction N joins batch N of each, and
commits all that comes of it at once. What is to be joined over transactions
belongs into a state; see state_query.
"""

from trident import DeltaAppend, FixedBatchSpout, JoinType, TridentTopology

orders = [
    [("o1", "ann", 10.0), ("o2", "bob", 20.0)],
    [("o3", "ann", 5.0), ("o4", "eve", 7.5), ("o5", "bob", 2.5)],
]
payments = [
    [("o1", "card")],
    [("o3", "card"), ("o5", "cash"), ("o9", "card")],
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
    order, payment, parcel, keys=["order_id", "order", "order"],
    type=JoinType.mixed(JoinType.INNER, JoinType.OUTER, JoinType.OUTER),
)  # fmt: skip
everything.partition_persist(DeltaAppend("orders"))


def is_open(method: str, parcel: str) -> bool:
    return method is None or parcel is None


everything.filter("method, parcel", is_open).partition_persist(DeltaAppend("open_orders"))

if __name__ == "__main__":
    query = topology.start()
    query.process_all_available()
    print("paid:")
    query.snapshot("paid").orderBy("order_id").show()
    print("every order, with what there is of it:")
    query.snapshot("orders").orderBy("order_id", "parcel").show()
    print("open:", ", ".join(sorted(row.order_id for row in query.snapshot("open_orders").collect())))
    query.stop()
