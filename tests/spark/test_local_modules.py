"""The workers of a local master import what this process imports."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from tests.stream_helpers import stream_of
from trident.testing import run_batch


def test_workers_know_a_folder_of_sys_path_and_a_module_that_was_reloaded(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "changing_helpers.py"
    file.write_text("def told(n):\n    from beside_helpers import WORD\n    return f'{WORD} {n}'\n")
    (tmp_path / "beside_helpers.py").write_text("WORD = 'old'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("changing_helpers")
    assert run_batch(stream_of("n long").map(lambda n: module.told(n), "s string"), [(1,)], spark=spark) == [("old 1",)]
    file.write_text("def told(n):\n    return f'new {n}'\n")
    os.utime(file, (2_000_000_000, 2_000_000_000))  # Python itself looks at whole seconds
    importlib.reload(module)
    found = run_batch(stream_of("n long").map(module.told, "s string"), [(1,)], spark=spark)
    assert found == [("new 1",)]
