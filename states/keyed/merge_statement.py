"""The MERGE of a keyed state's log into its plain table: the statement, its guard, and the meaning of its errors."""

from __future__ import annotations

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from trident.coordinators.errors import CommitConflict, TableError
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import backquoted
from trident.states.core.native import NativeMerge
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN
from trident.states.delta.kernel_errors import java_causes
from trident.states.keyed.compaction import MergePlan, guard_condition
from trident.states.keyed.log_merge import (
    deleted,
    fitted,
    is_sequenced,
    keeps_last,
    quoted,
    same_key,
    wide_type,
)

# Two compactors that both read P and want (P, a] and (P, b], a < b, may both merge, one after the other: Delta's
# SetTransaction is monotone, not a compare-and-set. A row that the first one wrote carries its _upto, and stops the
# second. A row that the first one *deleted* is gone and stops none. That is no harm where rows can be deleted: there
# a log row is a whole value, and the second MERGE sets each key of (P, a] again, since b > a, to its newest value of
# (P, b], which is its value as of b whatever the table holds: a key deleted and never written again has no row and gets
# none, one written again after a is inserted as what it is. (With partial values it would be an error, and there
# nothing is deleted.) The other order, b before a, Delta passes over; and of two that overlap in time Delta rejects
# one, since both write the same SetTransaction.
_GUARD = "trident: another compactor merged this row"


def merge_into(
    session: "SparkSession",
    path: str,
    state: StateDescriptor,
    plan: MergePlan,
    source: "DataFrame",
    native: NativeMerge | None,
    adopted: bool = False,
    clamps: bool = False,
) -> None:
    """Merges new rows, one per key, into the plain table at ``path``; its Delta settings are the session's.

    Args:
        adopted: whether the table has rows that no MERGE of ours has written, from before the first transaction.
        clamps: as of ``log_merge.fitted``.

    Raises:
        CommitConflict: another compactor merged meanwhile; nothing was changed.
        TableError: it failed; nothing was changed.
    """
    merge = DeltaTable.forPath(session, path).alias("t").merge(source.alias("s"), same_key(state.keys, "t", "s"))
    added: dict[str, "str | Column"] = {
        backquoted(field.name): quoted(field.name, "s") for field in state.schema.fields
    }
    if native is not None:
        for name in state.value_fields:
            if wide_type(state, name) is not None:
                new = quoted(name, "s")
                added[backquoted(name)] = fitted(state, name, new, new.isNotNull(), "s", clamps)
    added[backquoted(UPTO_COLUMN)] = _txid(plan.upto)
    changed = _changed(state, plan, native, adopted, clamps)
    if is_sequenced(state):
        # A row of the table that is later in the sequence stays, and so does a deleted one: it holds the key deleted.
        # Nothing of this MERGE shows in it, so that the guard need not look at it.
        hidden = {backquoted(name): quoted(name, "s") for name in (DELETED_COLUMN, TXID_COLUMN)}
        merge = merge.whenMatchedUpdate(~_stays(state, plan), {**changed, **hidden})
        merge = merge.whenNotMatchedInsert(values={**added, **hidden})
        if state.retention.below(plan.upto) > state.retention.below(plan.after):
            merge = merge.whenNotMatchedBySourceDelete(_forgotten(state, plan))
    elif keeps_last(state):
        # Delta computes conditions for rows without a match too, so that nothing may raise here: a deleted row
        # that does not pass is left to the update, which raises.
        merge = merge.whenMatchedDelete(deleted("s") & _passes(plan, adopted)).whenMatchedUpdate(set=changed)
        merge = merge.whenNotMatchedInsert(~deleted("s"), added)
    else:
        merge = merge.whenMatchedUpdate(set=changed).whenNotMatchedInsert(values=added)
    try:
        merge.execute()
    except Exception as error:
        raise _meaning(error, path, plan) from error


def _changed(
    state: StateDescriptor, plan: MergePlan, native: NativeMerge | None, adopted: bool, clamps: bool
) -> dict[str, "str | Column"]:
    """Returns what a MERGE sets in a row that is there."""
    kinds = {field.name: field.dataType for field in state.schema.fields}
    raises = F.raise_error(F.lit(_GUARD)).cast("bigint")
    changed: dict[str, "str | Column"] = {
        backquoted(UPTO_COLUMN): F.when(_passes(plan, adopted), _txid(plan.upto)).otherwise(raises)
    }
    for name in state.value_fields:
        new = quoted(name, "s")
        wide = None if native is None else wide_type(state, name)
        if wide is not None and native is not None:
            # Null as a sum that has too many digits is told from null as no value by what it is made of.
            there = quoted(name, "t").isNotNull() | new.isNotNull()
            total = F.coalesce(F.try_add(quoted(name, "t").cast(wide), new), F.when(~_both(name), _either(name, wide)))
            new = fitted(state, name, total, there, "t", clamps)
        elif native is not None:
            new = native.combine_columns(quoted(name, "t"), new).cast(kinds[name])
        changed[backquoted(name)] = new
    return changed


def _both(name: str) -> "Column":
    return quoted(name, "t").isNotNull() & quoted(name, "s").isNotNull()


def _either(name: str, wide: "DecimalType") -> "Column":
    return F.coalesce(quoted(name, "t").cast(wide), quoted(name, "s"))


def _stays(state: StateDescriptor, plan: MergePlan) -> "Column":
    """True of a matched row that is later than the new one by (sequence, txid); never null."""
    place = [F.struct(quoted(state.sequence, side), quoted(TXID_COLUMN, side)) for side in ("t", "s")]
    return F.coalesce(place[0] > place[1], F.lit(False)) & ~_forgotten(state, plan)


def _forgotten(state: StateDescriptor, plan: MergePlan) -> "Column":
    """True of a row of a deleted key that does not hold against changes of these transactions; never null."""
    bound = state.retention.below(plan.upto)
    return deleted("t") & F.coalesce(quoted(TXID_COLUMN, "t") < bound, F.lit(False))


def _passes(plan: MergePlan, adopted: bool) -> "Column":
    """True of a matched row that holds nothing of this MERGE; null of one that we did not write, nor adopt."""
    upto = f"t.{UPTO_COLUMN}"
    return ~F.expr(guard_condition(plan, f"coalesce({upto}, 0)" if adopted else upto))


def _txid(txid: int) -> "Column":
    return F.lit(txid).cast("bigint")


_CONFLICTS = (
    "ConcurrentAppend",
    "ConcurrentDelete",
    "ConcurrentTransaction",
    "ConcurrentWrite",
    "DELTA_CONCURRENT_",
    "MetadataChanged",
    "DELTA_METADATA_CHANGED",
)


def _meaning(error: Exception, path: str, plan: MergePlan) -> Exception:
    """Returns what an exception of a MERGE says, as one of ours."""
    causes = _causes(error)
    if any(word in cause for cause in causes for word in (_GUARD, *_CONFLICTS)):
        return CommitConflict(
            f"another compactor merged into {path} meanwhile",
            found=_first_line(causes[-1]),
            expected=f"a table merged up to {plan.after}",
            action="nothing was changed; the MERGE is planned anew",
        )
    return merge_failed(path, plan, _first_line(causes[-1]))


def merge_failed(path: str, plan: MergePlan, found: str) -> TableError:
    """The error of a MERGE that has changed nothing."""
    return TableError(
        f"the MERGE of transactions {plan.after + 1} to {plan.upto} into {path} failed",
        found=found,
        action="nothing is lost: the log has the rows, and the MERGE is tried again",
    )


def _causes(error: Exception) -> list[str]:
    """Returns what an exception and its causes in the JVM say; the last is where it began."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    return [str(error), *(str(one.toString()) for one in java_causes(java))]


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    # Of an error in a Python worker the first line only says that there is one.
    raised = [line for line in lines if line.startswith(("trident.", "coordinators.", "states."))]
    return [*raised, *lines, "no message"][0][:500]
