"""The Spark session, Spark jobs, and what is sent to a cluster."""
