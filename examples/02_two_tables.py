"""02: two tables committed as one: every order, and the revenue per country.

    python examples/02_two_tables.py

Both tables belong to one batch group. A reader that asks for one transaction
sees both as of that transaction, so the orders always add up to the revenue.
"""

from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, Sum, TridentTopology

orders = [
    [("o1", "de", 10.0), ("o2", "fr", 20.0)],
    [("o3", "de", 5.0)],
    [("o4", "it", 7.5), ("o5", "fr", 2.5), ("o6", "de", 1.0)],
]

topology = TridentTopology("shop")
stream = topology.new_stream("orders", FixedBatchSpout("order_id string, country string, amount double", orders))
stream.partition_persist(DeltaAppend("shop_orders"))
stream.group_by("country").persistent_aggregate(DeltaMapState("shop_revenue"), "amount", Sum(), "total")

if __name__ == "__main__":
    query = topology.start()
    query.process_all_available()
    for txid in range(1, len(orders) + 1):
        rows = query.snapshot("shop_orders", txid=txid)
        by_country = query.snapshot("shop_revenue", txid=txid)
        listed = rows.groupBy().sum("amount").first()[0]
        summed = by_country.groupBy().sum("total").first()[0]
        print(f"transaction {txid}: {rows.count()} orders worth {listed}, revenue {summed}")
        assert listed == summed
    query.snapshot("shop_revenue").orderBy("country").show()
    query.stop()
