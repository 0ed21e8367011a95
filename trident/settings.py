"""Settings as one frozen object: read by name, from the environment and from texts, and shown without secrets."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

from trident.coordinators.errors import ConfigError, described

ENVIRONMENT_PREFIX = "TRIDENT_"
# Variables of this framework that are not settings of a topology.
_NOT_SETTINGS = frozenset({"TRIDENT_FAULTS", "TRIDENT_SETTINGS"})
_HIDDEN = "***"

Own = TypeVar("Own", bound="Settings")


class Settings:
    """The base of a frozen dataclass each of whose fields is a setting, with its kind in the metadata."""

    @classmethod
    def _fields(cls) -> dict[str, Field[Any]]:
        """Every setting by name."""
        kind: Any = cls
        return {setting.name: setting for setting in fields(kind)}

    def _check(self) -> None:
        """Raises ConfigError where settings contradict each other."""

    def __init__(self, **settings: Any) -> None:
        self._fill(
            {**from_environment(self._fields(), os.environ), **named(self._fields(), settings, type(self).__name__)}
        )

    def _fill(self, given: Mapping[str, tuple[Any, str]]) -> None:
        origins = {}
        for name, setting in self._fields().items():
            value, origin = given.get(name, (setting.default, "default"))
            object.__setattr__(self, name, accepted(setting, value, origin) if name in given else value)
            origins[name] = origin
        object.__setattr__(self, "_origins", origins)
        self._check()

    def replace(self: Own, **settings: Any) -> Own:
        """A copy with these settings instead; the environment is not read again."""
        return self._with(named(self._fields(), settings, type(self).__name__))

    def with_overrides(self: Own, assignments: Iterable[str]) -> Own:
        """A copy with ``key=value`` texts on top, as ``--set`` gives them.

        Raises:
            ConfigError: a text is not of the form, or as in the constructor.
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
                found = _HIDDEN if sounds_secret else repr(assignment)
                raise ConfigError("--set cannot be read", found=found, expected="key=value")
            given[key.strip()] = value.strip()
        return self._with(named(self._fields(), given, "--set"))

    def _with(self: Own, given: Mapping[str, tuple[Any, str]]) -> Own:
        own = {name: (getattr(self, name), self.origin(name)) for name in self._fields()}
        copy = object.__new__(type(self))
        copy._fill({**own, **given})
        return copy

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: "default", "TRIDENT_…", "TridentConfig" or "--set"."""
        origins: dict[str, str] = vars(self)["_origins"]
        return origins[name]

    def shown(self) -> dict[str, Any]:
        """Every setting as it may be shown: a secret that is given reads ``***``."""
        return {
            name: _HIDDEN
            if setting.metadata["secret"] and getattr(self, name) not in (None, ())
            else getattr(self, name)
            for name, setting in self._fields().items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """Pickled, it has no secrets: a function that names its config takes it along to the executors."""
        hidden = {name: setting.default for name, setting in self._fields().items() if setting.metadata["secret"]}
        return {**vars(self), **hidden}

    def __copy__(self: Own) -> Own:
        return self

    def __deepcopy__(self: Own, memo: dict[int, Any]) -> Own:
        return self

    def __repr__(self) -> str:
        given = {name: value for name, value in self.shown().items() if self.origin(name) != "default"}
        return f"{type(self).__name__}(" + ", ".join(f"{name}={value!r}" for name, value in given.items()) + ")"


def accepted(setting: Field[Any], value: Any, origin: str) -> Any:
    """The value of a setting as it is stored; raises ConfigError for an impossible one."""
    try:
        return setting.metadata["kind"].accept(value)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{origin}: {setting.name} has an impossible value",
            found=_HIDDEN if setting.metadata["secret"] else described(value),
            expected=setting.metadata["kind"].expected,
        ) from None


def named(known: Mapping[str, Field[Any]], settings: Mapping[str, Any], origin: str) -> dict[str, tuple[Any, str]]:
    """Settings by name with their origin; raises ConfigError for a name that is unknown."""
    for name in settings:
        if name not in known:
            raise _unknown(known, name, f"{origin}: there is no setting {name!r}", name)
    return {name: (value, origin) for name, value in settings.items()}


def from_environment(known: Mapping[str, Field[Any]], environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """The settings among the variables, with their origin; raises ConfigError for one that is nearly a setting's."""
    given = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS:
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        if name in known:
            given[name] = (value, variable)
        elif difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            # Passed over, a misspelt setting would be lost silently.
            raise _unknown(known, name, f"the environment variable {variable} is no setting", variable)
    return given


def _unknown(known: Mapping[str, Field[Any]], name: str, message: str, found: str) -> ConfigError:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if found.startswith(ENVIRONMENT_PREFIX):
        near = [ENVIRONMENT_PREFIX + one.upper() for one in near]
    action = f"did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists the settings"
    return ConfigError(message, action=action)
