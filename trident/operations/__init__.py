"""The operations of streams: one file a family, with its checks and its nodes."""
