"""Finds the Java that Spark would use, with its version."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess

from trident.coordinators.errors import JavaProblem

JAVA_MAJOR_MIN = 17


def find_java() -> tuple[str, int]:
    """The Java that Spark would use: of JAVA_HOME if that is set, else of the PATH.

    Returns:
        (its path, its major version).

    Raises:
        JavaProblem: there is none, it does not work, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    action = (
        f"install a JDK {JAVA_MAJOR_MIN} or newer and point JAVA_HOME at it"
        " (Debian, Ubuntu: apt-get install openjdk-17-jre-headless, or openjdk-21-jre-headless; no JAVA_HOME needed)"
    )
    if path is None:
        raise JavaProblem("there is no Java", found="JAVA_HOME is not set, no java on the PATH", action=action)
    if not os.access(path, os.X_OK):
        raise JavaProblem("JAVA_HOME has no Java", found=f"JAVA_HOME={home}", expected=f"a file {path}", action=action)
    major = _java_major(path)
    if isinstance(major, str):
        raise JavaProblem(f"the Java at {path} does not work", found=major or "no output", action=action)
    if major < JAVA_MAJOR_MIN:
        raise JavaProblem(
            "Java is too old",
            found=f"Java {major} at {path}",
            expected=f"Java {JAVA_MAJOR_MIN} or newer",
            action=action,
        )
    return path, major


def java_identity() -> tuple[str, str]:
    """The Java that Spark would use: its path without links, and all that it says of its version and its maker.

    Raises:
        JavaProblem: as :func:`find_java`.
    """
    path, _ = find_java()
    return os.path.realpath(path), _version_text(path)[1]


def _java_major(path: str) -> int | str:
    """The major version, or what was printed instead of one."""
    works, output = _version_text(path)
    # "1.8.0_402" is Java 8; since 9 the first number is the major version.
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found and works else output.strip()[:300]


@functools.lru_cache(maxsize=8)
def _version_text(path: str) -> tuple[bool, str]:
    """Tells whether this Java works, with its output or the problem."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, errors="replace")
    except (OSError, subprocess.SubprocessError) as problem:
        return False, str(problem)
    return done.returncode == 0, done.stderr + done.stdout
