"""FileSpout: a folder's files, each row once."""
