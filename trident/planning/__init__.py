"""Plans a topology: from its nodes to Spark DataFrames."""
