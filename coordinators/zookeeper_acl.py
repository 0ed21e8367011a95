"""Gives a topology's znodes that every client may change to their creator, once, where the ensemble now authenticates.

New znodes get the creator's ACL from the connection (``default_acl``); ZooKeeper has no inheritance, so that says
nothing of those that are there.
"""

from __future__ import annotations

from trident.coordinators.zookeeper import ZooKeeper


def keep_for_creator(zk: ZooKeeper, topology: str) -> int:
    """Takes everybody's rights to a topology's znodes away; for the leader, with an authenticated connection.

    The topology's own znode comes last: while that is open, a part of the
    others may be, and the next leader goes through them again. Else only that
    one is looked at.

    Returns:
        how many znodes were open.

    Raises:
        CoordinationError: this identity may not see to them.
        ZooKeeperUnreachable: on the way; the next leader goes on.
    """
    top = zk.path(topology)
    return _close(zk, top) if zk.everybody_may(top) else 0


def _close(zk: ZooKeeper, path: str) -> int:
    closed = sum(_close(zk, f"{path}/{child}") for child in zk.children(path))
    if not zk.everybody_may(path):
        return closed
    zk.keep_for_creator(path)
    return closed + 1
