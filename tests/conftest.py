"""What the tests share."""

from __future__ import annotations

pytest_plugins = ["tests.zk_fixtures"]
