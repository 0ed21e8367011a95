"""Chooses the executor for a spout, by the spout's kind."""

from __future__ import annotations

from typing import Any

from trident.messages.executor import MessageSpoutExecutor
from trident.spouts.contracts import PartitionedTridentSpout, SpoutContext, SpoutKind
from trident.spouts.executors import BatchSpoutExecutor, SpoutExecutor, TridentSpoutExecutor, is_batch_spout
from trident.spouts.partition_executors import OpaquePartitionedTridentSpoutExecutor, PartitionedTridentSpoutExecutor
from trident.spouts.rich import is_rich_spout


def make_executor(spout: Any, context: SpoutContext) -> SpoutExecutor:
    """The executor for a spout, by its kind."""
    if isinstance(spout, PartitionedTridentSpout):
        opaque = spout.kind is SpoutKind.OPAQUE
        cls = OpaquePartitionedTridentSpoutExecutor if opaque else PartitionedTridentSpoutExecutor
        return cls(spout, context)
    if is_rich_spout(spout):
        return MessageSpoutExecutor(spout, context)
    if is_batch_spout(spout):
        spout = BatchSpoutExecutor(spout)
    return TridentSpoutExecutor(spout, context)
