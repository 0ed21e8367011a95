"""The JVM of the tests: its session, its options, its archive of classes, and the jar of kept plans."""
