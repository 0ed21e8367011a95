"""Makes the jar of kept plans and of the log store for S3 from ``java/``: the same bytes each time, with a JDK 17.

python -m tests.jvm.make_jar [TARGET]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from trident.spark.jars import delta_jars, jar_path

SOURCES = Path(__file__).resolve().parents[2] / "java"
RELEASE = 17
# Of every file in the jar; nor is anything packed, since packers differ.
_TIME = (1980, 1, 1, 0, 0, 0)


def make(jar: Path) -> None:
    """Compiles the sources against the jars of Spark and Delta, and writes the classes in the order of their names."""
    found = [str(Path(pyspark.__file__).parent / "jars" / "*"), *delta_jars({})]
    sources = sorted(SOURCES.rglob("*.java"))
    with tempfile.TemporaryDirectory() as folder:
        options = f"--release {RELEASE} -g:source,lines -proc:none -nowarn -Xlint:none -encoding UTF-8".split()
        subprocess.run(["javac", *options, "-cp", os.pathsep.join(found), "-d", folder, *map(str, sources)], check=True)
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as packed:
            for path in sorted(Path(folder).rglob("*.class")):
                packed.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix(), _TIME), path.read_bytes())


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else jar_path())
