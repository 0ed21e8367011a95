"""``python -m tests.pages`` writes the pages that are made from code."""

from tests.pages.made import write

write()
