"""Spark's own file of settings, ``spark-defaults.conf``, which its JVM reads below all that a session is given."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

_LINE = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", re.DOTALL)


def spark_defaults() -> dict[str, str]:
    """The settings of the file in ``SPARK_CONF_DIR`` or in Spark's own folder ``conf``; none where there is no file."""
    conf = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    try:
        return properties(Path(conf, "spark-defaults.conf").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}  # the JVM says it where it cannot read the file


def properties(text: str) -> dict[str, str]:
    """The properties of a text as Java takes them: ``name value``, ``name=value`` or ``name: value`` in a line.

    A backslash at the end of a line goes on with the next; elsewhere it takes the next character as it is. Java's
    ``\\n`` and ``\\u0041``, which no setting needs, are not known here.
    """
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while re.search(r"(?<!\\)(?:\\\\)*\\$", line):
            line = line[:-1] + next(lines, "").lstrip()
        if matched := _LINE.match(line):
            name, value = (re.sub(r"\\(.)", r"\1", part) for part in matched.groups())
            found[name] = value.strip()
    return found
