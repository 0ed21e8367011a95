"""Settings from a TOML file, and single Spark settings from the environment.

The file is the one that ``TRIDENT_SETTINGS`` names (``trident … --settings FILE`` sets it)::

    warehouse = "/shared/lake"
    max_spout_pending = 4

    [spark]
    master = "spark://head:7077"
    executor.memory = "4g"          # spark.executor.memory
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "TRIDENT_SETTINGS"
SPARK_PREFIX = "TRIDENT_SPARK__"
_SPARK = "spark"
# Of docs/configuration.md.
ABOUT_SOURCES = """\
Where a value comes from, the later the stronger: the default; the settings file; the environment
(`TRIDENT_MAX_ATTEMPTS=3`); `TridentConfig(max_attempts=3)`; on the command line `--set max_attempts=3`. An
unknown name is an error.

The settings file is TOML. `TRIDENT_SETTINGS=trident.toml` names it, or `--settings trident.toml` of every
command; none is read unless it is named:

```toml
warehouse = "/shared/lake"
max_spout_pending = 4

[spark]                                  # Spark's settings, without the word in front
master = "spark://head:7077"
executor.memory = "4g"                   # spark.executor.memory
speculation = true
"speculation.interval" = "1s"            # quoted, where another setting is the beginning of its name
```

Spark settings of all sources add up: `[spark]`; `TRIDENT_SPARK_CONF`; single variables, in which two underscores
are a dot (`TRIDENT_SPARK__executor__memoryOverhead=1g`; a name in capitals alone means small letters:
`TRIDENT_SPARK__EXECUTOR__MEMORY=4g`); `TridentConfig(spark_conf={…})`; `trident run --conf spark.key=value`.
"""


def read_settings_file(environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The settings of the file that the environment names, ``spark_conf`` among them, and the file's name.

    Raises:
        ConfigError: there is no such file, or it is no TOML; its contents are not shown.
    """
    name = environ.get(VARIABLE, "")
    if not name:
        return {}, ""
    try:
        found = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"the settings file {name} cannot be read",
            found=getattr(problem, "strerror", None) or type(problem).__name__,
            expected="a TOML file, named by TRIDENT_SETTINGS or --settings",
        ) from None
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"the settings file {name} is no TOML", found=_place(problem)) from None
    if "spark_conf" in found or not isinstance(found.get(_SPARK, {}), dict):
        raise ConfigError(
            f"{name}: Spark settings are a table", expected='[spark], with lines as executor.memory = "4g"'
        )
    spark = found.pop(_SPARK, {})
    return {**found, **({"spark_conf": dict(_flat(_SPARK, spark))} if spark else {})}, name


def spark_conf_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of variables such as ``TRIDENT_SPARK__executor__memoryOverhead``: two underscores are a dot.

    A name in capitals alone means small letters: ``TRIDENT_SPARK__EXECUTOR__MEMORY`` is ``spark.executor.memory``.
    """
    found = {}
    for variable, value in environ.items():
        if variable.startswith(SPARK_PREFIX) and len(variable) > len(SPARK_PREFIX):
            name = variable[len(SPARK_PREFIX) :]
            found[f"spark.{(name.lower() if name.isupper() else name).replace('__', '.')}"] = value
    return found


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
