"""Decides which early plans can be kept from batch to batch, as far as that shows before a session (no Spark here)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from trident.planning.groups import GroupPlan
from trident.planning.operation import Operation, arrow_types, names_of

# Functions of Spark whose value is fixed when a plan is made, or differs from plan to plan. The session decides
# (java/trident/kept/KeptPlan.java); this is to say so in `explain`.
_FIXED = re.compile(
    r"\b(current_\w+|curdate|now|localtimestamp|rand\w*|uuid\w*|shuffle|user|session_user"
    r"|monotonically_increasing_id|spark_partition_id|input_file_name)\(|\bunix_timestamp\(\)",
    re.IGNORECASE,
)


def why_not_kept(plan: GroupPlan) -> str | None:
    """Why the plan of a group's early part is made anew for each batch; None: it is kept where the session agrees."""
    lowered = plan.lowered
    if plan.spout_tables:
        return "a spout writes a table of its own"
    targets = [segment.target for segment in lowered.segments]
    if not lowered.checkpointed.isdisjoint(targets):
        return "several branches use rows that are computed once"
    taken = lowered.boundaries.keys() | lowered.shared | lowered.single_use
    if any(target.output_name is None and target not in taken for target in targets):
        return "a branch ends in a function without a state"
    for op in _ops(plan):
        if getattr(op, "per_batch", False):
            return f"{op.describe()} is given the batch"
        if _FIXED.search(op.describe()):
            return f"{op.describe()}: its value is fixed when a plan is made"
    return None


def is_worker_pass(plan: GroupPlan) -> bool:
    """Tells whether the late part of a small batch can be one pass of a Python worker, where the session agrees.

    Around segments with code of the user's Spark gives times in the session's zone, and a worker in UTC; the
    framework's own steps do not look at the zone.
    """
    late = plan.late_on_arrow
    if late is None or plan.tracked or not plan.late_states:
        return False
    fields = (one.fields for one in plan.lowered.boundaries.values())
    return late.is_own or not late.has_times(pa.schema(list(zip(names_of(one), arrow_types(one)))) for one in fields)


def is_one_job(plan: GroupPlan) -> bool:
    """Tells whether both parts of a small batch can be one Spark job in the batch's turn, where the session agrees."""
    return is_worker_pass(plan) and len(plan.lowered.boundaries) == 1 and why_not_kept(plan) is None


def _ops(plan: GroupPlan) -> Iterator[Operation]:
    return (op for segment in plan.lowered.segments for op in segment.ops)
