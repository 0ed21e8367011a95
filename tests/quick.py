"""``make quick``: what a developer runs at each save, in a minute: the pure tests, and those near the changes.

Pure is a test without a fixture of Spark, ZooKeeper or another server. Near are the tests of a module that has changed
since a commit (``--since``, HEAD without it): the test files that import it themselves and stand in its room, or have
its name, and test files that have changed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Behind them are processes that take seconds to start.
SERVERS = {"spark", "zk_server", "kafka_session", "postgres_server", "redis_server", "secured"}
# Processes in the tests themselves, or long searches.
SLOW = (
    "tests/cluster",
    "tests/commands",
    "tests/whole",
    "tests/coordinators/test_explorer",
    "tests/states/delta/test_kernel",
)
# After so many seconds no test begins; with the checks before them that is a minute.
SECS = 40.0


class Quick:
    """A plugin of pytest that leaves out what is neither pure nor near."""

    def __init__(self, near: set[str]) -> None:
        self._near, self._until, self.left_out = near, time.monotonic() + SECS, 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = [item for item in items if not self._wanted(item)]
        items[:] = sorted(filter(self._wanted, items), key=lambda item: not self._is_near(item))
        config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self._until:
            return None
        self.left_out += 1
        return True

    def _is_near(self, item: pytest.Item) -> bool:
        return item.path.relative_to(ROOT).as_posix() in self._near

    def _wanted(self, item: pytest.Item) -> bool:
        if item.get_closest_marker("long"):
            return False
        file = item.path.relative_to(ROOT).as_posix()
        is_pure = not SERVERS & set(getattr(item, "fixturenames", ())) and not file.startswith(SLOW)
        return is_pure or self._is_near(item)


def near(changed: list[str]) -> set[str]:
    """The test files near the files that have changed."""
    graph = grimp.build_graph("trident", "tests", cache_dir=str(ROOT / ".venv" / ".grimp"))
    found = {path for path in changed if path.startswith("tests/") and Path(path).name.startswith("test_")}
    for path in changed:
        if not path.endswith(".py") or path.split("/")[0] not in ("trident", "states", "coordinators"):
            continue
        inside = path.removeprefix("trident/").removesuffix(".py").removesuffix("/__init__")
        module, (*room, name) = "trident." + inside.replace("/", "."), inside.split("/")
        importers = graph.find_modules_that_directly_import(module) if module in graph.modules else set()
        mirror = ".".join(["tests", *room])
        for importer in importers | {f"{mirror}.test_{name}"}:
            file = importer.replace(".", "/") + ".py"
            if importer.startswith(mirror + ".test_") and (ROOT / file).exists():
                found.add(file)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__.splitlines()[0])
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="changes after it, and what is not committed")
    since = parser.parse_args().since
    changed = _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")
    chosen = near(changed)
    print(f"== quick: pure tests, and {', '.join(sorted(chosen)) or 'no others'}", flush=True)
    plugin = Quick(chosen)
    code = int(pytest.main(["-q", "-p", "no:cacheprovider"], plugins=[plugin]))
    if plugin.left_out:
        print(f"== quick: {plugin.left_out} tests were left out, for the time was over")
    return code


def _git(*arguments: str) -> list[str]:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    sys.exit(main())
