"""What a stream can do: one file a family of operations, with its checks and its nodes."""
