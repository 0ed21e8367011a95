"""Runs a page of the documentation as its reader would, and compares what it prints with what the page says.

In the order of the page, in one folder:

- a ``python`` block with ``title="NAME.py"`` is saved under that name; one without is run, all in one namespace;
- of a ``console`` block each line behind ``$`` is run, and the lines up to the next one are what it prints;
- a ``text`` block right behind a ``python`` block is what that prints;
- comments, which no reader sees, say what a block needs: ``<!-- also run``, lines of Python, ``-->`` are run in the
  same namespace where they stand; ``<!-- here: 8123 is 2 -->`` runs the next block with another text in place of the
  page's; ``<!-- not run: REASON -->`` leaves the next block out. Blocks that begin with ``>>>`` are doctests, which
  tests of their own run.

``python FILE`` runs in this process, with the session that the tests share, and ``trident …`` by click: starting Spark
takes longer than what they do. A line with ``kill -9`` runs its program in a process of its own, which is killed by
SIGKILL at a fault point. Of the lines ``trident run FILE &`` the first runs here beside the page, until its end; those
behind it are processes of their own, and the page goes on once they stand by. In what a program prints, ``…`` on the
page stands for anything within a line; as a line of its own, for any lines. A program that fails is expected where the
page names the class of its error.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from trident.cli import main
from trident.commands.user_file import load_topology
from trident.running.query import TopologyQuery

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<text>.*?)^```$"
    r"|^<!-- also run\n(?P<also>.*?)^-->$|^<!-- here: (?P<here>.+?) -->$|^<!-- not run: (?P<left>.+?) -->$",
    re.MULTILINE | re.DOTALL,
)
# Killed behind the decision of its first transaction, before anything of it is in a table.
KILLED_AT = "zk.decide:do_then_die:1"
STANDS_BY_SECS = 240.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``also`` is the language of what only runs."""

    language: str
    title: str | None
    text: str
    line: int
    not_run: str | None = None
    """Why it is not run."""

    @property
    def runs(self) -> bool:
        doctest = self.text.startswith(">>>")
        return self.not_run is None and self.language in ("python", "console", "also") and not doctest


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    not_run, here = None, ""
    for found in FENCE.finditer(text):
        if found["left"] or found["here"]:
            not_run, here = found["left"] or not_run, found["here"] or here
            continue
        title = re.search(r'title="([^"]+)"', found["options"] or "")
        code = found["text"] if found["also"] is None else found["also"]
        for one in filter(None, here.split("; ")):
            said, meant = one.split(" is ")
            assert said in code, f"{page.name}: {said!r} is not in the block behind <!-- here: {here} -->"
            code = code.replace(said, meant)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found["language"] or "also", title and title[1], code, line, not_run)
        not_run, here = None, ""


class PageRun:
    """One page, in the current folder; ``printed()`` gives what was printed since it was last asked."""

    def __init__(self, page: Path, printed: Callable[[], str]) -> None:
        self._page, self._printed = page, printed
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._raised: Exception | None = None
        self._beside: TopologyQuery | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self.compared = 0

    def run(self) -> None:
        """Runs the whole page.

        Raises:
            AssertionError: something is printed that the page does not say.
        """
        try:
            self._run(list(blocks(self._page)))
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
            if self._beside is not None:
                self._beside.stop()

    def _run(self, there: list[Block]) -> None:
        for number, block in enumerate(there):
            following = there[number + 1] if number + 1 < len(there) else None
            if not block.runs:
                continue
            if block.language == "python" and block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.language in ("python", "also"):
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
            found = self._command(command)
            raised, self._raised = self._raised, None
            if raised is not None and type(raised).__name__ not in expected:
                raise raised
            self._compare(block.line, expected, found)

    def _command(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        if words[:2] == ["trident", "run"] and words[-1] == "&":
            return self._run_beside(words[2])
        if "kill -9" in command:
            return _killed(words[1])
        if words[0] == "python":
            return self._program(words[1:])
        if words[0] == "trident":
            done = CliRunner().invoke(main, words[1:])
            assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
            return done.output
        return subprocess.run(["bash", "-ec", command], check=True, capture_output=True, text=True, timeout=60).stdout

    def _run_beside(self, file: str) -> str:
        """What ``trident run FILE`` does; returns once it leads, or stands by."""
        if self._beside is None:
            topology, _ = load_topology(file)
            self._beside = topology.start(progress="none")  # what it says would be taken for a command's
            self._beside.process_all_available()
            self._printed()
            return ""
        command = [sys.executable, "-m", "trident.cli", "run", file, "--set", "progress=plain"]
        conf = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        said = Path(f"{file}.out")
        with said.open("wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        self._processes.append(process)
        until = time.monotonic() + STANDS_BY_SECS
        while "standby: " not in said.read_text(errors="replace"):
            told = f"trident run {file} does not stand by:\n{said.read_text(errors='replace')[-3000:]}"
            assert process.poll() is None and time.monotonic() < until, told
            time.sleep(0.2)
        return ""

    def _program(self, words: list[str]) -> str:
        """What ``python WORDS`` prints; of one that raises its traceback too."""
        before, path = sys.argv, sys.path[:]
        sys.argv = words
        sys.path.insert(0, os.getcwd())  # as Python does with a program's folder
        for name in [one.stem for one in Path().glob("*.py")]:
            sys.modules.pop(name, None)  # a page may have written another version of it
        told = ""
        try:
            if words[0] == "-c":
                exec(compile(words[1], "-c", "exec", dont_inherit=True), {"__name__": "__main__"})
            else:
                runpy.run_path(words[0], run_name="__main__")
        except Exception as error:
            self._raised, told = error, traceback.format_exc()
        finally:
            sys.argv, sys.path[:] = before, path
        return self._printed() + told

    def _compare(self, line: int, expected: str, found: str) -> None:
        pattern = ""
        for number, said in enumerate(expected.strip().split("\n")):
            behind = "\n" if number else ""
            some = ".*".join(re.escape(part) for part in said.split("…"))
            pattern += rf"(?:{behind}[\s\S]*)?" if said == "…" else behind + some
        told = f"{self._page.name}, line {line}, says:\n{expected}\nand this is printed:\n{found}"
        assert re.fullmatch(pattern, found.strip()), told
        self.compared += bool(expected.strip())


def _killed(program: str) -> str:
    environment = {**os.environ, "TRIDENT_FAULTS": KILLED_AT}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    return ""
