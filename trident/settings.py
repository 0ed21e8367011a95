"""Where settings come from, each with its origin: a TOML file, the environment, names and texts.

The file is the one that ``TRIDENT_SETTINGS`` names (``trident … --settings FILE`` sets it)::

    warehouse = "/shared/lake"
    max_spout_pending = 4

    [spark]
    master = "spark://head:7077"
    executor.memory = "4g"          # spark.executor.memory
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError, described

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "TRIDENT_SETTINGS"
ENVIRONMENT_PREFIX = "TRIDENT_"
SPARK_PREFIX = "TRIDENT_SPARK__"
HIDDEN = "***"
# Variables of this framework that are not settings of a topology.
_NOT_SETTINGS = frozenset({"TRIDENT_FAULTS", VARIABLE})
_SPARK = "spark"
# Name → value and origin.
Given = Mapping[str, tuple[Any, str]]
# Of docs/configuration.md.
ABOUT_SOURCES = """\
Sources of a value, of which a later one wins: the default; the settings file; the environment
(`TRIDENT_MAX_ATTEMPTS=3`); `TridentConfig(max_attempts=3)`; on the command line `--set max_attempts=3`. An
unknown name is an error.

The settings file is TOML. `TRIDENT_SETTINGS=trident.toml` names it, or `--settings trident.toml` of every
command; without either, no file is read:

```toml
warehouse = "/shared/lake"
max_spout_pending = 4

[spark]                                  # Spark's settings, without the word in front
master = "spark://head:7077"
executor.memory = "4g"                   # spark.executor.memory
speculation = true
"speculation.interval" = "1s"            # quoted where another setting is a prefix of the name
```

Spark settings of all sources add up: `[spark]`; `TRIDENT_SPARK_CONF`; single variables, in which two underscores
are a dot (`TRIDENT_SPARK__executor__memoryOverhead=1g`; a name in capitals alone means small letters:
`TRIDENT_SPARK__EXECUTOR__MEMORY=4g`); `TridentConfig(spark_conf={…})`; `trident run --conf spark.key=value`.
"""


def from_file(known: Mapping[str, Field[Any]], environ: Mapping[str, str]) -> Given:
    """The settings of the file that the environment names, ``spark_conf`` among them.

    Raises:
        ConfigError: there is no such file, or it is no TOML; its contents are not shown. Or as :func:`named`.
    """
    file = environ.get(VARIABLE, "")
    if not file:
        return {}
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"the settings file {file} is no TOML", found=_place(problem)) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"the settings file {file} cannot be read",
            found=getattr(problem, "strerror", None) or type(problem).__name__,
            expected="a TOML file, named by TRIDENT_SETTINGS or --settings",
        ) from None
    spark = found.pop(_SPARK, {})
    if "spark_conf" in found or not isinstance(spark, dict):
        raise ConfigError(
            f"{file}: Spark settings are a table", expected='[spark], with lines as executor.memory = "4g"'
        )
    return named(known, {**found, **({"spark_conf": dict(_flat(_SPARK, spark))} if spark else {})}, file)


def from_environment(known: Mapping[str, Field[Any]], environ: Mapping[str, str]) -> Given:
    """The settings among the variables; raises ConfigError for one that is nearly a setting's."""
    given = {}
    for variable, value in environ.items():
        if (
            not variable.startswith(ENVIRONMENT_PREFIX)
            or variable.startswith(SPARK_PREFIX)
            or variable in _NOT_SETTINGS
        ):
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        if name in known:
            given[name] = (value, variable)
        elif difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            # Passed over, a misspelt setting would be lost silently.
            raise _unknown(known, name, f"the environment variable {variable} is no setting", ENVIRONMENT_PREFIX)
    return given


def spark_conf_of(environ: Mapping[str, str]) -> Given:
    """Spark settings of variables such as ``TRIDENT_SPARK__executor__memoryOverhead``: two underscores are a dot.

    A name in capitals alone means small letters: ``TRIDENT_SPARK__EXECUTOR__MEMORY`` is ``spark.executor.memory``.
    """
    found = {}
    for variable, value in environ.items():
        name = variable.removeprefix(SPARK_PREFIX)
        if name and name != variable:
            found[f"spark.{(name.lower() if name.isupper() else name).replace('__', '.')}"] = value
    return {"spark_conf": (found, f"{SPARK_PREFIX}…")} if found else {}


def from_texts(known: Mapping[str, Field[Any]], assignments: Iterable[str]) -> Given:
    """``key=value`` texts, as ``--set`` gives them.

    Raises:
        ConfigError: a text is not of the form, or as :func:`named`.
    """
    given: dict[str, Any] = {}
    if isinstance(assignments, (str, bytes)) or not isinstance(assignments, Iterable):
        raise ConfigError("overrides are several texts", found=described(assignments), expected='["key=value", …]')
    for assignment in assignments:
        if not isinstance(assignment, str):
            raise ConfigError("--set cannot be read", found=described(assignment), expected="the text key=value")
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            sounds_secret = any(word in assignment.lower() for word in ("auth", "password", "token"))
            found = HIDDEN if sounds_secret else repr(assignment)
            raise ConfigError("--set cannot be read", found=found, expected="key=value")
        given[key.strip()] = value.strip()
    return named(known, given, "--set")


def named(known: Mapping[str, Field[Any]], settings: Mapping[str, Any], origin: str) -> Given:
    """Settings by name; raises ConfigError for a name that is unknown."""
    for name in settings:
        if name not in known:
            raise _unknown(known, name, f"{origin}: there is no setting {name!r}")
    return {name: (value, origin) for name, value in settings.items()}


def accepted(setting: Field[Any], value: Any, origin: str) -> Any:
    """The value of a setting as it is stored; raises ConfigError for an impossible one."""
    try:
        return setting.metadata["kind"].accept(value)
    except (ValueError, TypeError, KeyError, ArithmeticError):
        raise ConfigError(
            f"{origin}: {setting.name} has an impossible value",
            found=HIDDEN if setting.metadata["secret"] else described(value),
            expected=setting.metadata["kind"].expected,
        ) from None


def _unknown(known: Mapping[str, Field[Any]], name: str, message: str, prefix: str = "") -> ConfigError:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if prefix:
        near = [prefix + one.upper() for one in near]
    action = f"did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists the settings"
    return ConfigError(message, action=action)


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value


def _place(problem: Exception) -> str:
    """ "line 3, column 4": the parser's own text may quote a value."""
    text = str(problem)
    return text[text.rindex("(at ") + 4 : -1] if "(at " in text else "its end is missing"
