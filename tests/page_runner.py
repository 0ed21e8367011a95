"""Runs a page of the documentation as its reader would, and compares what it prints with what the page says.

In the order of the page, in one folder:

- a ``python`` block with ``title="NAME.py"`` is saved under that name; one without is run, all in one namespace;
- of a ``console`` block each line behind ``$`` is run, and the lines up to the next one are what it prints;
- a ``text`` block right behind a ``python`` block is what that prints.

``python FILE`` runs in this process, with the session that the tests share, and ``trident …`` by click: starting Spark
takes longer than what they do. A line with ``kill -9`` runs its program in a process of its own, which is killed by
SIGKILL at a fault point. In what a program prints, ``…`` on the page stands for anything within a line; as a line of
its own, for any lines.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from trident.cli import main

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Killed behind the decision of its first transaction, before anything of it is in a table.
KILLED_AT = "zk.decide:do_then_die:1"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    text: str
    line: int


def blocks(page: Path, section: str = "") -> Iterator[Block]:
    """The blocks of a page, or of the section below one of its headings of the second level."""
    text = page.read_text(encoding="utf-8")
    start = text.index(f"\n## {section}\n") + 1 if section else 0
    end = text.find("\n## ", start) if section else -1
    for found in FENCE.finditer(text, start, len(text) if end < 0 else end):
        title = re.search(r'title="([^"]+)"', found[2])
        yield Block(found[1], title and title[1], found[3], text.count("\n", 0, found.start()) + 1)


class PageRun:
    """One page, or a section of it, in the current folder; ``printed()`` gives what was printed since the last call."""

    def __init__(self, page: Path, printed: Callable[[], str], section: str = "") -> None:
        self._page, self._printed, self._section = page, printed, section
        self._names: dict[str, object] = {"__name__": "__main__"}
        self.compared = 0

    def run(self) -> None:
        """Runs the whole page.

        Raises:
            AssertionError: something is printed that the page does not say.
        """
        there = list(blocks(self._page, self._section))
        for number, block in enumerate(there):
            following = there[number + 1] if number + 1 < len(there) else None
            if block.language == "python" and block.title:
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                self._printed()
                # The line numbers of the page; `from __future__` of this file does not count there.
                code = compile("\n" * block.line + block.text, str(self._page), "exec", dont_inherit=True)
                exec(code, self._names)
                if following and following.language == "text":
                    self._compare(following.line, following.text, self._printed())
            elif block.language == "console":
                self._console(block)

    def _console(self, block: Block) -> None:
        steps = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        for step in steps:
            command, _, expected = step.partition("\n")
            self._printed()
            self._compare(block.line, expected, self._command(command))

    def _command(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        if "kill -9" in command:
            return _killed(words[1])
        if words[0] == "python":
            before = sys.argv
            sys.argv = words[1:]
            try:
                runpy.run_path(words[1], run_name="__main__")
            finally:
                sys.argv = before
            return self._printed()
        if words[0] == "trident":
            done = CliRunner().invoke(main, words[1:])
            assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
            return done.output
        return subprocess.run(["bash", "-ec", command], check=True, capture_output=True, text=True, timeout=60).stdout

    def _compare(self, line: int, expected: str, found: str) -> None:
        lines = [
            r"[\s\S]*" if line == "…" else ".*".join(re.escape(part) for part in line.split("…"))
            for line in expected.strip().split("\n")
        ]
        pattern = "\n".join(lines)
        told = f"{self._page.name}, line {line}, says:\n{expected}\nand this is printed:\n{found}"
        assert re.fullmatch(pattern, found.strip()), told
        self.compared += bool(expected.strip())


def _killed(program: str) -> str:
    environment = {**os.environ, "TRIDENT_FAULTS": KILLED_AT}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    return ""
