"""Steps that may run in the coordinator's process: each says so itself, and all of them stand here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pyarrow as pa
import pytest

import trident.workers
from trident.workers.arrow_plan import ArrowPlan, ArrowSegment, OwnPlan
from trident.workers.chain import Chain, Keep, Step
from trident.workers.failures import Label
from trident.workers.own_steps import Columns

# Read each line of a step before you add it: it calls no function, state or map of the user's.
OWN = {
    "Aggregated",
    "AsTheyAre",
    "Columns",
    "CombineStored",
    "CountRows",
    "GatherFromCopy",
    "Gathered",
    "Given",
    "KeepTrue",
    "KeepWhere",
    "LookUp",
    "NewRows",
    "OpenWindows",
    "SplitText",
    "Tagged",
    "TimedStep",
    "WithCondition",
    "WithConstant",
    "WithMarker",
    "WithoutMarker",
}

# Each takes what its Spark partition has for the whole batch; the others give the same for any part of the rows, or,
# as TimedStep and CountRows, need those of a key or none.
NEED_ALL = {
    "Aggregated",
    "AsTheyAre",
    "GatherFromCopy",
    "Gathered",
    "NewRows",
    "OpenWindows",
    "WithConstant",
    "WithMarker",
}


def steps() -> Iterator[type[Step]]:
    for module in pkgutil.iter_modules(trident.workers.__path__, "trident.workers."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, Step) and found.__module__ == module.name:
                yield found


def test_the_framework_s_own_steps_are_these() -> None:
    assert {step.__name__ for step in steps() if step.own} == OWN
    assert not Step.own  # a step that says nothing is the user's


def test_these_steps_need_all_rows_of_a_batch() -> None:
    assert {step.__name__ for step in steps() if step.needs_all} == NEED_ALL


def test_no_own_step_has_an_object_of_the_user_s() -> None:
    for step in steps():
        if step.own:
            assert not hasattr(step, "user")
            assert not {"function", "call"} & set(getattr(step, "__dataclass_fields__", ()))


def test_a_plan_with_a_step_of_the_user_s_is_none_for_the_driver() -> None:
    schema = pa.schema([("n", pa.int64())])
    own, users = Columns(("n",)), Keep(Label("filter", "here:1"), bool, ("n",), ("n",))

    def segments(*steps: Step) -> tuple[ArrowSegment, ...]:
        return (ArrowSegment(("in",), "out", Chain(steps, schema)),)

    assert ArrowPlan(segments(own, users), {}).in_driver is None
    with pytest.raises(AssertionError, match="never runs in the coordinator"):
        OwnPlan(segments(own, users), {})
    plan = ArrowPlan(segments(own), {"rows": "out"}).in_driver
    assert plan is not None
    assert plan.run({"in": pa.table({"n": [1], "m": [2]})}, None, None)["rows"].to_pylist() == [{"n": 1}]
