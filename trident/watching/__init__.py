"""Events of a running topology, and those who are told them: metrics, pages, listeners."""
