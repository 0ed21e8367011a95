"""Kafka into Delta tables, Kafka and PostgreSQL, while each of them is killed at random: ``python -m tests.kills``."""
