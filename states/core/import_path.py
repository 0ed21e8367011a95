"""Where a process of the framework's own finds modules: not in its working folder, and in the user's folders last."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa


def import_path() -> list[str]:
    """The ``sys.path`` of such a process: as this process's, but the user's folders behind all that it needs.

    Start it with ``python -c``, so that no module of the user's is imported before.
    """
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    own += [os.path.join(folder, "lib-dynload") for folder in own]
    framework, libraries = str(Path(__file__).parents[3]), str(Path(pa.__file__).parents[1])
    # A zip file was sent to this host by the driver: that version, and not one that is installed here.
    own += [framework, libraries] if os.path.isfile(framework) else [libraries, framework]
    return list(dict.fromkeys([*own, *(folder for folder in sys.path if os.path.isabs(folder))]))
