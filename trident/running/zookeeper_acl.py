"""Warns once when every client that reaches the ensemble could change a topology's znodes.

A client that can write there can make a topology commit twice, or never again.
On loopback, where the embedded server is, those are the accounts of this
machine: no warning.
"""

from __future__ import annotations

import logging
import re

from trident.config import TridentConfig
from trident.config_kinds import is_loopback
from trident.coordinators.errors import CoordinationError
from trident.coordinators.zookeeper import ZooKeeper

log = logging.getLogger("trident.zookeeper")
_GUIDE = "docs/security.md has the whole of it"
_warned: set[tuple[str, str, str]] = set()


def warn_if_open(config: TridentConfig, zk: ZooKeeper) -> None:
    """Says once in this process that an ensemble, its root and the settings leave the znodes open, and what to do."""
    if config.zookeeper == "embedded" or all(is_loopback(host) for host in hosts_of(config.zookeeper)):
        return
    reason = _why_open(config, zk)
    key = (config.zookeeper, config.zookeeper_root, reason)
    if reason and key not in _warned:
        _warned.add(key)
        log.warning("ZooKeeper at %s is open: %s (%s)", config.zookeeper, reason, _GUIDE)


def hosts_of(zookeeper: str) -> list[str]:
    """The hosts of a "host:port,[address]:port/chroot" text, without ports and brackets."""
    hosts = []
    for one in zookeeper.partition("/")[0].split(","):
        bracketed = re.fullmatch(r"\[(.*)\](?::\d+)?", one.strip())
        hosts.append(bracketed[1] if bracketed else one.strip().partition(":")[0])
    return hosts


def _why_open(config: TridentConfig, zk: ZooKeeper) -> str:
    if not config.authenticates:
        return (
            "this connection presents no identity, so everybody who reaches a server can change or delete the"
            " transactions of every topology. Set zookeeper_sasl_mechanism, _username and _password, or a TLS"
            " certificate, or zookeeper_auth; new znodes are then their creator's, older ones become so"
        )
    if not config.keeps_for_creator:
        return (
            "zookeeper_acl=open leaves the znodes to everybody, though this connection has an identity. Leave"
            " zookeeper_acl at `auto`"
        )
    try:
        root_is_open = zk.everybody_may(zk.path())
    except CoordinationError:
        return ""  # not even its ACL may be read
    if root_is_open:
        return (
            f"the root znode {config.zookeeper_root} was made without an ACL, so everybody can take the name of a"
            f" topology that does not exist yet. Give it one in zkCli.sh: setAcl {config.zookeeper_root}"
            " auth::cdrwa, or name another zookeeper_root"
        )
    return ""
