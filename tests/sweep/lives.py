"""Coordinator processes that kill themselves with SIGKILL at a fault point, one after the other.

Each life resumes what the one before has left, and is compared with the source
before it is sent to its own death.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import store_servers
from tests.jvm_options import COLD, VARIABLE
from tests.outside_stores import OutsideStores
from tests.sweep.books import Books
from tests.sweep.cases import BEGINS, BEGINS_OUTSIDE, BESIDES, EVERY, NTH, OUTSIDE, kinds

WAIT_SECS = 180
PER_LIFE = 2
ROOT = Path(__file__).resolve().parent.parent.parent


def deaths(kind: str) -> list[tuple[str, str]]:
    """(when, fault): at each point of a running coordinator, or in one kind of one that begins, where kinds are alike.

    All that a running coordinator passes in that kind it passes in the others too.
    """
    if kind == "transactional":
        return [("beginning", f"{point}:do_then_die:{NTH.get(point, 2)}") for point in BEGINS]
    found = [("running", f"{point}:do_then_die:{NTH.get(point, 2)}") for point in (*EVERY, *BESIDES[kind])]
    if kind in OUTSIDE:
        found += [("beginning", f"{point}:do_then_die:{NTH[point]}") for point in BEGINS_OUTSIDE]
    return found


class Lives:
    """The processes of one kind over one warehouse."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        warehouse: str,
        zookeeper: str,
        root: str,
        znodes: Callable[[], list[str]],
        outside: OutsideStores | None = None,
    ) -> None:
        self.books = Books(kind, folder, warehouse, znodes, outside=outside)
        conf = json.dumps(store_servers.spark_settings(warehouse))
        self._command = [sys.executable, "-m", "tests.sweep.child", kind, str(folder), warehouse, zookeeper, root, conf]
        self.killed = 0

    def go(self, ends: list[tuple[str, str]]) -> None:
        """A life for each end, and a last one that ends well."""
        self.books.feed(PER_LIFE)
        for when, fault in ends:
            print(when, fault, flush=True)
            if when == "beginning":
                # Dies in the midst of something, so that the one that begins has something to finish.
                self._live("running", "publish.table:do_then_die:2")
            self._live(when, fault)
        with self._process("") as (process, tell):
            tell("drain")
            self.books.check()
            self.books.check_cleaned()
            process.stdin.write("stop\n")
            process.stdin.flush()
            assert process.wait(WAIT_SECS) == 0

    def _live(self, when: str, fault: str) -> None:
        with self._process(fault if when == "beginning" else "") as (process, tell):
            if when == "running":
                tell("drain")
                self.books.check()
                self.books.check_cleaned()
                tell(f"arm {fault}")
            self.books.feed(PER_LIFE)
            assert process.wait(WAIT_SECS) == -signal.SIGKILL, f"{fault}: ended with {process.returncode}"
            self.killed += 1

    def _process(self, fault: str) -> "_Process":
        return _Process(self._command, fault)


class _Process:
    def __init__(self, command: list[str], fault: str) -> None:
        jvm = f"{os.environ.get(VARIABLE, '')} {COLD}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRIDENT_FAULTS": fault, VARIABLE: jvm}
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stderr:  # type: ignore[union-attr]
            self._said.append(line)

    def __enter__(self):  # noqa: ANN204
        return self._process, self._tell

    def _tell(self, command: str) -> None:
        process = self._process
        try:
            process.stdin.write(command + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer = process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            answer = ""
        assert answer == "done\n", f"{command}: {answer!r}\n{''.join(self._said)[-4000:]}"

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(5)
        if kind is not None:
            print("".join(self._said)[-4000:], file=sys.stderr)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()  # type: ignore[union-attr]


def all_deaths() -> Iterator[tuple[str, str, str]]:
    for kind in kinds():
        yield from ((kind, *death) for death in deaths(kind))
