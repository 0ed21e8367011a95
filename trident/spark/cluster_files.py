"""Sends this framework and the user's own modules to executors: of a cluster, and of a local master.

On one machine Spark's Python workers import from the driver's own folders. On a
cluster they have what is installed on their hosts, and what is sent: two zip
files by ``SparkContext.addPyFile``, which come before what is installed.

- The framework as it is here. So no host needs it, and none has another version.
- Every module that this process has imported and that is not installed, with
  the whole of its package; and the Python files beside the script. Packages in
  site-packages are not sent: they may have compiled parts, and are the hosts' own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

from pyspark import SparkContext, SparkFiles

from trident.coordinators.errors import ConfigError
from trident.states.core.addresses import is_local_master

log = logging.getLogger(__name__)
FRAMEWORK = "trident-framework-"
_USERS = "trident-user-modules-"
# More than this is data, or a whole home folder.
_BYTES_MAX = 64 << 20
_FILES_MAX = 5_000
_NOT_SENT = {"trident", "pyspark", "py4j", "delta", "trident_user_file", "__main__"}
_INSTALLED = {"site-packages", "dist-packages"}
# The times of the files in a zip: the same files give the same bytes, and so the same name.
_TIME = (1980, 1, 1, 0, 0, 0)
# A setting of ours in the session's: the packed environment that is sent.
PYTHON_ARCHIVE = "spark.trident.pythonArchive"
_UNPACKED = "trident-python"
_pythons: "WeakKeyDictionary[SparkContext, str]" = WeakKeyDictionary()
_sent: "WeakKeyDictionary[SparkContext, str]" = WeakKeyDictionary()  # context → the name of the framework there


def send_framework(context: "SparkContext") -> str:
    """Sends the framework to the executors of a cluster, once per context; the name of what was sent, or ""."""
    if context not in _sent:
        _sent[context] = ""
        if not is_local_master(context.master):
            package = Path(os.path.abspath(__file__)).parents[1]
            _sent[context] = _send(context, FRAMEWORK, dict(_tree(package, "trident")))
    return _sent[context]


def send_python(context: "SparkContext", archive: str | None) -> None:
    """Sends a packed environment to the executors of a cluster, whose Python they run from here on; once per context.

    Args:
        archive: a file of this host, or the URL of one that the cluster reaches; None: nothing is sent.

    Raises:
        ConfigError: there is no such file.
    """
    if archive is None or is_local_master(context.master) or context in _pythons:
        return
    if "://" not in archive:
        archive = os.path.abspath(archive)
        if not os.path.isfile(archive):
            raise ConfigError(
                "the packed environment of python_archive is not there",
                found=f"no file {archive}",
                expected="a .tar.gz or .zip that venv-pack or conda-pack has made",
            )
    context.addArchive(f"{archive}#{_UNPACKED}")
    # The command that tasks are started with, a path in the folder where the executor has unpacked it.
    context.pythonExec = f"./{_UNPACKED}/bin/python"
    _pythons[context] = archive


def send_user_modules(context: "SparkContext") -> list[str]:
    """Sends what the user has imported and not installed; the names of the modules and packages.

    Modules that another topology of this process has sent are sent again if there are more of them by now.
    """
    if is_local_master(context.master):
        return []
    found = _user_modules()
    files: dict[str, Path] = {}
    sent = []
    for name, place in sorted(found.items()):
        of_one = dict(_tree(place, name)) if place.is_dir() else {f"{name}.py": place}
        size = sum(path.stat().st_size for path in of_one.values())
        if size > _BYTES_MAX or len(of_one) > _FILES_MAX:
            log.warning(
                "%s is not sent to the executors: %d Python files with %d bytes; install it on every host, or give it "
                "with --py-files",
                place,
                len(of_one),
                size,
            )
            continue
        files |= of_one
        sent.append(name)
    if files:
        _send(context, _USERS, files)
    return sent


def _user_modules() -> dict[str, Path]:
    """Name → the file of a module or the folder of a package, of what is not installed."""
    found: dict[str, Path] = {}
    script = _script_folder()
    if script is not None:
        siblings = (path for path in script.glob("*.py") if path.stem.isidentifier() and path.is_file())
        found |= {path.stem: path for path in siblings if path.stem not in _NOT_SENT}
    for name, module in list(sys.modules.items()):
        if "." in name or not is_of_user(name):
            continue
        place = _place_of(module)
        if place is not None and not is_installed(place):
            found[name] = place
    return found


def _place_of(module: object) -> Path | None:
    """The file of a module in Python, or the folder of a package."""
    folders = list(getattr(module, "__path__", ()))
    file = getattr(module, "__file__", None)
    if folders and all(isinstance(one, str) for one in folders):
        place = Path(folders[0])
    elif isinstance(file, str) and file.endswith(".py"):
        place = Path(file)
    else:
        return None
    place = Path(os.path.abspath(place))
    return place if place.exists() else None


def is_of_user(name: str) -> bool:
    """Tells whether a module of this name may be the user's."""
    return name.partition(".")[0] not in _NOT_SENT


def is_installed(place: Path) -> bool:
    """Tells whether a file belongs to Python's own library or to an installed package."""
    if _INSTALLED & set(place.parts):
        return True
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}
    return any(library and Path(library) in place.parents for library in libraries)


def _script_folder() -> Path | None:
    """The folder of the script that runs, or of the file given to ``trident run``; None in a notebook or a shell."""
    scripts = [module for name, module in list(sys.modules.items()) if name.startswith("trident_user_file.")]
    script = scripts[-1] if scripts else sys.modules.get("__main__")
    file = getattr(script, "__file__", None)
    if not file or getattr(script, "__spec__", None) is not None:
        return None
    folder = Path(os.path.abspath(file)).parent
    return None if is_installed(folder) or folder == Path(sys.executable).parent else folder


def _tree(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """(name in the zip, file) of a package's Python files, through links."""
    for at, below, names in os.walk(folder, followlinks=True):
        below[:] = sorted(one for one in below if one.isidentifier() and one != "__pycache__")
        inside = Path(at).relative_to(folder)
        if len(inside.parts) > 20:  # a link to a folder above
            below.clear()
        for file in sorted(names):
            if file.endswith(".py") and Path(at, file).is_file():
                yield str(Path(name) / inside / file), Path(at, file)


def _send(context: "SparkContext", kind: str, files: dict[str, Path]) -> str:
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    name = f"{kind}{digest.hexdigest()[:16]}.zip"
    known = context.__dict__.setdefault("_trident_sent", set())
    if name not in known:
        # Spark copies it now; this folder ends with the process.
        folder = tempfile.mkdtemp(prefix="trident-", dir=getattr(context, "_temp_dir", None))
        path = os.path.join(folder, name)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            for inside, content in contents.items():
                made.writestr(zipfile.ZipInfo(inside, _TIME), content)
        before = list(sys.path)
        context.addPyFile(path)
        # It is for the executors; here the files themselves are imported.
        sys.path[:] = before
        known.add(name)
    return name


# Lets the Python workers of a local master import what this process imports: its folders, its files as they are now.
#
# Spark starts workers with ``PYTHONPATH`` as it was when the JVM began, and uses them again for later topologies: a
# folder that came into ``sys.path`` meanwhile would be unknown to them, and a module that was changed and reloaded here
# would stay as they have loaded it. Spark tells workers apart by their environment: where it changes, new ones are
# started.


_Stamps = dict[str, tuple[int, int]]
_known: "WeakKeyDictionary[SparkContext, _Stamps]" = WeakKeyDictionary()
_added: "WeakKeyDictionary[SparkContext, list[str]]" = WeakKeyDictionary()
# Only so that the environment is another one: its value is the number of times that files had changed.
_VARIABLE = "TRIDENT_MODULES_CHANGED"
_PATH = "PYTHONPATH"


def renew_workers(context: "SparkContext") -> None:
    """From here on jobs of a local master have workers that import from ``sys.path``, and no file as it was before.

    Jobs that were made before keep their workers. Nothing is done for a cluster, which is sent what it needs.
    """
    if not is_local_master(context.master):
        return
    path = context.environment.get(_PATH, "")
    # Without those of an earlier call: one that has left sys.path must not hide a module of Python's own any more.
    given = [folder for folder in path.split(os.pathsep) if folder and folder not in _added.get(context, ())]
    new = _added[context] = [folder for folder in _folders() if folder not in given]
    if (now := os.pathsep.join([*given, *new])) != path:
        context.environment[_PATH] = now
    found, known = dict(_stamps()), _known.setdefault(context, {})
    if any(known.get(file, stamp) != stamp for file, stamp in found.items()):
        context.environment[_VARIABLE] = str(int(context.environment.get(_VARIABLE, "0")) + 1)
    known.update(found)


def _folders() -> Iterator[str]:
    """The folders and archives of ``sys.path`` that the workers were not started with."""
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}
    started_with, of_spark = os.environ.get(_PATH, "").split(os.pathsep), SparkFiles.getRootDirectory()
    for folder in sys.path:
        place = Path(os.path.abspath(folder))
        if not folder or folder in started_with or folder in libraries or is_installed(place) or not place.exists():
            continue
        if not str(place).startswith(of_spark):  # Spark gives workers these itself
            yield str(place)


def _stamps() -> Iterator[tuple[str, tuple[int, int]]]:
    """The files of the user's modules with time and size."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if is_of_user(name) and isinstance(file, str) and not is_installed(Path(file)):
            try:
                found = os.stat(file)
            except OSError:
                continue
            yield file, (found.st_mtime_ns, found.st_size)
