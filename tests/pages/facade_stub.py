"""Writes ``trident/__init__.pyi``, by which type checkers know the lazy facade, from the facade's table of names."""

from __future__ import annotations

from pathlib import Path

import trident

PATH = Path(trident.__file__).with_suffix(".pyi")


def text() -> str:
    """The stub: each public name, imported from its home and exported by the same name."""
    homes = {name: "trident" for name in trident._MODULES} | trident._HOME
    lines = [
        f"from {home} import {name} as {name}" for name, home in sorted(homes.items(), key=lambda item: item[::-1])
    ]
    return "\n".join(
        [
            "# Made by `python -m tests.pages.facade_stub` from the table in __init__.py.",
            "# ruff: noqa: I001",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
