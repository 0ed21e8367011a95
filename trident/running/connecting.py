"""Connects a topology to its ZooKeeper: an ensemble, or the embedded server of its warehouse."""

from __future__ import annotations

from trident.config import TridentConfig
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import ConfigError
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.running.zookeeper_acl import warn_if_open
from trident.states.core.place import Place


def open_zookeeper(config: TridentConfig, warehouse: Place) -> ZooKeeper:
    """Connects to ZooKeeper as the settings say; starts the embedded server when it is to be.

    Raises:
        ZooKeeperUnreachable: no server answered within the connect timeout.
        ZooKeeperRefused: a certificate, an identity or a password is not accepted.
        JavaProblem: the embedded server needs a Java that is not here.
    """
    hosts = config.zookeeper
    if hosts == "embedded":
        hosts = EmbeddedZooKeeper.ensure(server_folder(warehouse))
    zk = ZooKeeper(
        ZooKeeperConfig(
            hosts=hosts,
            root=config.zookeeper_root,
            session_timeout_secs=config.zookeeper_session_timeout_secs,
            connect_timeout_secs=config.zookeeper_connect_timeout_secs,
            options=config.kazoo_options(),
        )
    )
    zk.connect()
    warn_if_open(config, zk)
    return zk


def server_folder(warehouse: Place) -> Place:
    """The data folder of a warehouse's embedded ZooKeeper server.

    Raises:
        ConfigError: the warehouse is in a store, and the server's data must be on a disk.
    """
    if not warehouse.is_local:
        raise ConfigError(
            f"the warehouse {warehouse} is in a store, and the embedded ZooKeeper server is bound to "
            "one machine's disk",
            found="zookeeper=embedded",
            expected="an ensemble that outlives this machine",
            action="set zookeeper to its hosts: HOST:PORT,HOST:PORT",
        )
    return warehouse / "_trident" / "zookeeper"
