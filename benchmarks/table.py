"""Writes the figures of runs (the JSON of ``python -m benchmarks --json FILE``) as the tables of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import lines as machine_lines

BEGIN, END = "<!-- made by python -m benchmarks.table: begin -->", "<!-- made by python -m benchmarks.table: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a later file's benchmark replaces an earlier's"
    )
    parser.add_argument("--into", type=Path, metavar="PAGE", help="replace what stands between the page's two marks")
    given = parser.parse_args(arguments)
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in given.files]
    quick = [str(file) for file, run in zip(given.files, runs) if run["quick"]]
    if quick:
        parser.error(f"{', '.join(quick)}: made with --quick, which says nothing about speed")
    text = tables(runs)
    if given.into is None:
        print(text)
        return 0
    page = given.into.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        parser.error(f"{given.into} has not exactly one line {BEGIN!r} and one {END!r}")
    head, tail = page[: page.index(BEGIN)], page[page.index(END) :]
    given.into.write_text(f"{head}{BEGIN}\n{text}\n{tail}", encoding="utf-8")
    return 0


def tables(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: one table for each benchmark, under its command and the machine it ran on.

    Args:
        runs: as ``--json`` writes them; of two that have the same benchmark the later one counts.
    """
    newest = {name: (run, found) for run in runs for name, found in run["benchmarks"].items()}
    return "\n\n".join(_table(name, run, found) for name, (run, found) in newest.items())


def _table(name: str, run: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    machine = machine_lines(run["machine"])
    made = [
        f"### {found['title']}",
        "",
        f"`python -m benchmarks {name}`, {run['made'][:10]}: {machine[0]}; commit {run['machine']['commit']}",
        "",
    ]
    if found["error"]:
        made += [f"**The run failed**: {found['error']}", ""]
    made += ["| | measured | goal |", "|---|---|---|"]
    for one in found["figures"]:
        spread = ""
        if len(one["rounds"]) > 1:
            spread = f" ({_number(min(one['rounds']))} to {_number(max(one['rounds']))}, {len(one['rounds'])} rounds)"
        made.append(f"| {_cell(one['name'])} | {_number(one['median'])} {one['unit']}{spread} | {_goal(one)} |")
    for one in found["ratios"]:
        made.append(f"| **{_cell(one['name'])}** | **{one['value']:.2f}** {one['unit']} | {_goal(one)} |")
    notes = [f"- {text}" for text in found["notes"]]
    return "\n".join(made + ([""] + notes if notes else []))


def _goal(one: Mapping[str, Any]) -> str:
    if one["goal"] is None:
        return ""
    return f"{one['goal']}: {'reached' if one['reached'] else '**missed**'}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
