"""The command line of long random runs: their seed, their folder, and how one that failed is run again."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# Runs in a new folder; gives all that is wrong, and what to say where nothing is.
Run = Callable[[Path, argparse.Namespace], tuple[list[str], str]]


def parser_of(module: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--folder", type=Path, default=None, help="a new folder, which is kept")
    return parser


def exit_code_of(module: str, given: argparse.Namespace, run: Run) -> int:
    """Runs it; a folder that it has made itself is kept only if the run fails."""
    folder = (given.folder or Path(tempfile.mkdtemp(prefix=f"trident-{module.rpartition('.')[2]}-"))).resolve()
    folder.mkdir(exist_ok=True)
    settings = {name.replace("_", "-"): value for name, value in vars(given).items() if name != "folder"}
    command = " ".join([f"python -m {module}", *(f"--{name} {value}" for name, value in settings.items())])
    failed = f"everything is in {folder}; again: {command}"
    print(f"seed {given.seed}, folder {folder}", flush=True)
    try:
        problems, exact = run(folder, given)
    except BaseException:
        print(f"FAILED; {failed}", flush=True)
        raise
    if problems:
        print("\n".join(["FAILED", *problems, failed]), flush=True)
        return 1
    print(exact, flush=True)
    if given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0
