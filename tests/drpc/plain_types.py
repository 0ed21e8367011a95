"""Arguments of each plain type that a request may have."""

import datetime as dt
from decimal import Decimal

TYPES = "a long, b int, c double, d string, e binary, f boolean, g date, h timestamp, i decimal(9,2), j float"
VALUES = [
    (1, 2, 0.5, "ä", b"\x00\xff", True, dt.date(2026, 3, 29), dt.datetime(2026, 3, 29, 2, 30), Decimal("1.50"), 1.5),
    (None,) * 10,
]
