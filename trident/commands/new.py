"""``trident new NAME``: a small project to begin with: topology, test, pyproject, systemd unit, compose file.

Its files are beside this module, in the folder ``project``.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from string import Template

from trident.coordinators.errors import ConfigError

_TEMPLATES = Path(__file__).parent / "project"
# Template -> where it is in the project.
_FILES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "topology.py": "topology.py",
    "test_topology.py": "test_topology.py",
    "gitignore": ".gitignore",
    "example.txt": "data/example.txt",
    "compose.yaml": "compose.yaml",
    "NAME.service": "deploy/{name}.service",
}


def new_project(name: str, parent: Path) -> list[Path]:
    """Makes the folder ``name`` below ``parent``, with a project in it; returns its files.

    Raises:
        ConfigError: the name cannot be one of a topology, a package and a unit; or there is such a folder already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > 60:
        raise ConfigError(
            "this name cannot be that of a project",
            found=repr(name),
            expected="at most 60 small letters, digits and single '-' between them, a letter first: word-count",
        )
    folder = parent / name
    if folder.exists():
        raise ConfigError(
            f"{folder} is there already", expected="no such file or folder", action="choose another name, or remove it"
        )
    facts = {"name": name, "version": metadata.version("trident-spark")}
    made = []
    for template, place in _FILES.items():
        path = folder / place.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(facts), encoding="utf-8")
        made.append(path)
    return made
