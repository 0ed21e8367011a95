"""KafkaSpout: the messages of topics of a Kafka cluster, each once."""
