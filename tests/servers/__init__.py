"""Servers that tests talk to: ZooKeeper, Kafka, PostgreSQL, Redis, S3 and HDFS, as processes and as fixtures."""
