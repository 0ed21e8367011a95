"""The workers of a local master import what this process imports."""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

import pytest

from tests.long_cases import sample
from tests.streams.stream_helpers import ATTEMPT, raised, run_pass, stream_of
from trident.coordinators.errors import ClusterProblem, UserFunctionError
from trident.testing import run_batch
from trident.udf.signatures import translate_failure


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


@pytest.mark.parametrize("missing", sample(["the module", "what is in it"], "the module"))
def test_a_module_that_a_worker_cannot_import_is_named_and_fails_each_attempt_alike(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    name = f"known_here_{'alone' if missing == 'the module' else 'and_there'}"
    if missing == "what is in it":  # as where a host has an older version
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.import_module(name)
    module = sys.modules.setdefault(name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, name, module)
    exec("def twice(n):\n    return 2 * n\n", module.__dict__)
    stream = stream_of("n long").map(module.__dict__["twice"], "m long")
    with pytest.raises(
        ClusterProblem, match=f"cannot import {name}.*found: .*{name}.*sys.path.*python_archive"
    ) as caught:
        run_batch(stream, [(1,)], spark=spark)
    assert caught.value.fingerprint == caught.value.found


def test_an_import_inside_of_a_function_says_what_to_do_too() -> None:
    def imports(n: int) -> int:
        return int(importlib.import_module("no_such_module_of_tests").n)

    error = translate_failure(raised(lambda: run_pass(stream_of("n long").map(imports, "m long"), [(1,)])), ATTEMPT)
    assert isinstance(error, UserFunctionError) and error.fingerprint and "python_archive" in str(error)
