"""The way to a Kafka cluster, for the spouts that read and the states that write."""
