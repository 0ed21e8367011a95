"""From a topology's nodes to Spark DataFrames."""
