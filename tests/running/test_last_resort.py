"""Warnings while nobody has configured logging: once, with date, level and topology; else left to the program's own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging, sys
from trident.running import process_defaults as last_resort
last_resort.install(), last_resort.install()
log = logging.getLogger("trident.coordinator")
log.warning("attempt %s of %s failed", "1:0", "words/lines")
log.info("not said")
logging.getLogger("trident.failures").debug("pages of Java")
last_resort.install(verbose=True)
logging.getLogger("trident.failures").debug("pages of Java, asked for")
logging.basicConfig(format="own: %(message)s")
log.warning("again")
"""


def test_a_warning_is_told_once_with_date_and_level_and_left_to_the_programs_own_handlers():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    first, second, third = done.stderr.splitlines()
    date, time, rest = first.split(" ", 2)
    assert len(date) == 10 and len(time) == 8 and rest == "WARNING attempt 1:0 of words/lines failed"
    assert second.endswith(" DEBUG pages of Java, asked for")
    assert third == "own: again"
