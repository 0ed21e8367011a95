"""Jars: of Delta and file systems by Spark's resolver, and the one of kept plans; and this host's name for it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import pyspark
from pyspark.find_spark_home import _find_spark_home

from trident.coordinators.errors import EnvironmentProblem
from trident.coordinators.processes import without_secrets
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.states.core import spark_jobs, storage

if TYPE_CHECKING:
    from pyspark import SparkContext


# The name of this machine, which Spark asks for at its start, with any master.


_VARIABLE = "SPARK_LOCAL_IP"
_LOOPBACK = "127.0.0.1"


def hostname_problem() -> str | None:
    """The problem, with its remedy, where this machine cannot resolve its own host name; else None."""
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError as error:
        return (
            f"this machine does not know its own name; found: {name}: {error.strerror or error}; expected: an address, "
            f"which Spark asks for at its start. Add a line to /etc/hosts ({_LOOPBACK} {name}), or set {_VARIABLE} to "
            "an address of this machine"
        )
    return None


def use_loopback_if_unresolvable(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes a JVM with this environment use the loopback address where this machine's host name does not resolve.

    Small images have no line for it in /etc/hosts, and Spark would end with an UnknownHostException. Only for a JVM
    that no other machine talks to. An address that the user has set stays.
    """
    if _VARIABLE not in environment and hostname_problem():
        environment[_VARIABLE] = _LOOPBACK


log = logging.getLogger("trident.spark.session")

LOCAL_FS_PACKAGE = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"

# The rest of what the resolver brings, Spark has already, often newer: before
# Spark's own jars on the class path the older ones would break it.
_OUR_GROUPS = ("io.delta_", "io.unitycatalog_", "com.globalmentor_")
RESOLVER_CONFS = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.excludes")
_RESOLVE_TIMEOUT_SECS = 600
_LIST_SCHEMA = 1


def delta_package() -> str:
    """The Maven name of Delta for the PySpark and delta-spark installed here."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{metadata.version('delta-spark')}"


def delta_jars(resolver: Mapping[str, str]) -> list[str]:
    """Paths of the jars of Delta and of the local file system; as :func:`resolved_jars`."""
    return resolved_jars("Delta Lake", [delta_package(), LOCAL_FS_PACKAGE], _OUR_GROUPS, resolver)


def known_delta_jars(resolver: Mapping[str, str]) -> list[str]:
    """Paths of the jars of :func:`delta_jars` if they are there: nothing is downloaded, [] stands for none."""
    packages = [delta_package(), LOCAL_FS_PACKAGE]
    with suppress(OSError):
        return _read_list(_list_file(packages, resolver), packages) or []
    return []


def resolved_jars(
    name: str,
    packages: list[str],
    groups: Sequence[str],
    resolver: Mapping[str, str],
    excluded: Sequence[str] = (),
) -> list[str]:
    """Paths of the jars of packages and of what these need.

    The first time Spark's resolver downloads them into its cache, in a JVM of
    its own: the paths must be known when the session's JVM starts. They are
    then remembered in a small file in the user's cache folder, and taken from
    there for as long as every one of them is still in place with its size.

    Args:
        name: of the packages together, for messages.
        packages: their Maven names.
        groups: the jars that are kept have names that begin with one of these.
        resolver: ``spark.jars.ivy`` and its like, when set.
        excluded: GROUP:ARTIFACT of what is not to be downloaded.

    Raises:
        EnvironmentProblem: they could not be resolved; says what the resolver said.
    """
    if excluded:
        given = resolver.get("spark.jars.excludes", "")
        resolver = {**resolver, "spark.jars.excludes": ",".join([*filter(None, [given]), *excluded])}
    try:
        cache = cache_folder()
    except OSError as error:
        log.warning("the list of the jars of %s cannot be kept, so they are resolved at each start: %s", name, error)
        return _resolve(name, packages, groups, resolver)
    listed = _list_file(packages, resolver)
    jars = _read_list(listed, packages)
    if jars is None:
        with storage.lock(cache / "resolve.lock", cache):
            # Another process may have resolved them while we waited.
            jars = _read_list(listed, packages)
            if jars is None:
                jars = _resolve(name, packages, groups, resolver)
                _write_list(listed, packages, jars)
    return jars


def _resolve(name: str, packages: list[str], groups: Sequence[str], resolver: Mapping[str, str]) -> list[str]:
    log.info("Downloading the jars of %s (once)", name)
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), "--packages", ",".join(packages)]
    for key, value in resolver.items():
        command += ["--conf", f"{key}={value}"]
    with tempfile.TemporaryDirectory() as folder:
        answer, script = Path(folder, "jars"), Path(folder, "list_jars.py")
        # spark-submit hands the jars that it resolved to the application as spark.jars.
        script.write_text(
            "import sys\nfrom pyspark import SparkConf, SparkContext\nSparkContext._ensure_initialized()\n"
            "open(sys.argv[1], 'w', encoding='utf-8').write(SparkConf().get('spark.jars', ''))\n",
            encoding="utf-8",
        )
        environment = without_secrets(os.environ)
        environment.pop("PYSPARK_SUBMIT_ARGS", None)
        use_loopback_if_unresolvable(environment)
        environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
        try:
            done = subprocess.run(
                [*command, str(script), str(answer)],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RESOLVE_TIMEOUT_SECS,
            )
            said = done.stderr + done.stdout
        except subprocess.TimeoutExpired:
            said = f"no answer after {_RESOLVE_TIMEOUT_SECS} s"
        text = answer.read_text(encoding="utf-8") if answer.exists() else ""
    jars = [unquote(urlsplit(jar).path) for jar in text.split(",") if jar]
    jars = [jar for jar in jars if os.path.basename(jar).startswith(tuple(groups))]
    wanted = [package.split(":")[1] for package in packages]
    if any(not any(each in os.path.basename(jar) for jar in jars) for each in wanted):
        lines = [line.strip() for line in said.splitlines()]
        telling = [line for line in lines if line.startswith("Caused by:")] or [
            line for line in lines if re.search("unresolved|not found|rror|imed out", line)
        ]
        raise EnvironmentProblem(
            f"the jars of {name} could not be downloaded",
            found=" | ".join(telling[:5]) or said[-500:] or "no jars",
            expected=", ".join(packages),
            action="check the network, or set spark.jars.repositories or spark.jars.ivySettings",
        )
    return jars


@dataclass(frozen=True)
class _JarList:
    """The jars of packages that were downloaded, with their sizes."""

    packages: list[str]
    jars: dict[str, int]


def _list_file(packages: list[str], resolver: Mapping[str, str]) -> Path:
    key = hashlib.sha256(json.dumps([packages, sorted(resolver.items())]).encode()).hexdigest()[:16]
    return cache_folder() / f"jars-{key}.json"


def _read_list(listed: Path, packages: list[str]) -> list[str] | None:
    """The jars in a list file; None when it, or one of the jars, is not whole."""
    try:
        found = as_record(parse_stored(storage.read(listed)), _JarList, _LIST_SCHEMA)
        whole = found.packages == packages and all(os.path.getsize(path) == size for path, size in found.jars.items())
    except (OSError, Unreadable):
        return None
    return list(found.jars) or None if whole else None


def _write_list(listed: Path, packages: list[str], jars: list[str]) -> None:
    content = {"schema": _LIST_SCHEMA, "packages": packages, "jars": {jar: os.path.getsize(jar) for jar in jars}}
    storage.write(listed, json.dumps(content, indent=1).encode(), durable=False)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "trident")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} is not writable")
    return folder


# The small jar behind kept plans (its sources are in ``java/``): where it lies, and how a session gets it.
#
# Sessions that the framework configures have it on their class path. One that the user gives is handed it while it
# runs;
# where that fails, every plan is made anew for each batch, which is slower and gives the same.


kept_plans_log = logging.getLogger(__name__)
_CLASS = "trident.kept.KeptPlan"
_found: "WeakKeyDictionary[SparkContext, Any]" = WeakKeyDictionary()


def jar_path() -> Path:
    return Path(__file__).with_name("kept-plans.jar")


def jars() -> list[str]:
    """The path of the jar; none where it is not there, as in a checkout without it."""
    return [str(jar_path())] if jar_path().exists() else []


def kept_plan_class(context: "SparkContext") -> Any | None:
    """The Java class ``KeptPlan`` in a context's JVM, looked for once; None: it is not there, or does not fit."""
    if not spark_jobs.fits(context):
        return None
    if context not in _found:
        _found[context] = _find(context)
    return _found[context]


def _find(context: "SparkContext") -> Any | None:
    jvm: Any = context._jvm
    try:
        if not _is_there(jvm) and jars():
            context._jsc.addJar(jars()[0])  # for the tasks
            jvm.PythonSQLUtils.addJarToCurrentClassLoader(jars()[0])
        if _is_there(jvm):
            return jvm.trident.kept.KeptPlan
    except Exception as error:  # py4j's, of many kinds: a JVM that forbids it is as good as one without the jar
        kept_plans_log.info("the jar of kept plans cannot be added to this session: %s", error)
    return None


def _is_there(jvm: Any) -> bool:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_CLASS, True, loader)
    except Exception:  # py4j's, in which the Java exception is wrapped
        return False
    return True
