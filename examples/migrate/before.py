"""Counts the orders of each item. BROKERS and LAKE say where."""

import os

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

BROKERS, LAKE = os.environ["BROKERS"], os.environ["LAKE"]

spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.databricks.delta.write.txnAppId", "orders")


def merge(rows, batch_id):
    rows.sparkSession.conf.set("spark.databricks.delta.write.txnVersion", batch_id)
    counts = rows.groupBy("item").agg(F.count("*").alias("count")).alias("s")
    merged = DeltaTable.forPath(rows.sparkSession, f"{LAKE}/counts").alias("t").merge(counts, "t.item = s.item")
    merged.whenMatchedUpdate(set={"count": "t.count + s.count"}).whenNotMatchedInsertAll().execute()


options = {"kafka.bootstrap.servers": BROKERS, "subscribe": "orders", "startingOffsets": "earliest"}
kafka = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=400_000).load()
orders = kafka.select(F.col("value").cast("string").alias("item"))
query = orders.writeStream.foreachBatch(merge).option("checkpointLocation", f"{LAKE}/checkpoint")
query.start().awaitTermination()
