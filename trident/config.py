"""Every setting of a topology: one table with default, unit and meaning.

Sources of a value; a later one wins::

    default  <  settings file  <  TRIDENT_<KEY> in the environment  <  TridentConfig(key=...)  <  --set key=value

Spark settings add up; of those with one name the later source wins.

The table is the class :class:`TridentConfig` itself; ``docs/configuration.md``
is made from it (``python -m trident.config``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trident.config_kinds import (
    HOSTS,
    ZNODE,
    Kind,
    choice,
    classes,
    flag,
    is_loopback,
    listen,
    listen_address,
    path,
    seconds,
    spark_conf,
    text,
    whole,
)
from trident.coordinators.errors import ConfigError, described
from trident.settings import (
    ABOUT_SOURCES,
    HIDDEN,
    Given,
    accepted,
    from_environment,
    from_file,
    from_texts,
    named,
    spark_conf_of,
)
from trident.states.core import storage
from trident.states.core.place import Place, warehouse_place

# Spark settings that have a setting of ours.
_OWN_SETTINGS = {"spark.master": "spark_master", "spark.driver.memory": "driver_memory"}


def _setting(default: Any, kind: Kind, doc: str, unit: str = "", secret: bool = False) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc, "unit": unit or kind.unit, "secret": secret})


_HADOOP = "spark.hadoop."
# The sections of docs/configuration.md, by their first setting.
_SECTIONS = {
    "max_spout_pending": "Transactions",
    "ackers": "Messages",
    "warehouse": "Warehouse",
    "zookeeper": "ZooKeeper",
    "spark_master": "Spark",
    "http": "Requests, metrics and the live page over HTTP",
    "progress": "Progress and status",
}


@dataclass(frozen=True, init=False, repr=False)
class TridentConfig:
    """The settings of a topology; made once, never changed. Neither its repr nor its pickle has the secrets.

    A setting that is not given comes from the environment
    (``TRIDENT_MAX_ATTEMPTS=3``), then from the TOML file that ``TRIDENT_SETTINGS`` names, then from the defaults. An
    environment variable that begins with ``TRIDENT_`` and is no setting is ignored, since other software may own
    it, unless its name is close to a setting's: that is a typing error.

    Args:
        **settings: any of the fields below, by name. Times are seconds. Text is
            read as it would be from the environment ("3", "true", "none").

    Raises:
        ConfigError: a name is unknown (the message has the nearest ones), or a
            value is impossible (the message has the found and the expected).
    """

    max_spout_pending: int = _setting(
        3,
        whole(1),
        "Transactions of a batch group that may be active at once. With 1 too, the coordinator requests N+1 from the "
        "spouts once N is decided, perhaps before it reports N's success to them.",
        unit="transactions",
    )
    max_attempts: int = _setting(
        8,
        whole(1),
        "Failures of one transaction since the coordinator started, after which the topology stops. Three in a row "
        "that are the same failure of user code or of a source's data, for the same row, stop it too.",
        unit="attempts",
    )
    message_timeout_secs: float | None = _setting(
        30.0,
        seconds(zero=False, optional=True),
        "How long the processing of an attempt may take, from its first Spark task on; four times as long until the"
        " process's first transaction has advanced. Each time-out doubles it, for the next transactions too. `none`: no"
        " limit.",
    )
    batch_emit_interval_secs: float = _setting(
        0.0, seconds(zero=True), "Least time between the starts of two new transactions; replays never wait for it."
    )
    stop_timeout_secs: float = _setting(
        60.0,
        seconds(zero=False),
        "How long a stop waits for decided transactions and for running calls of your code (a spout's `close`,"
        " `success`, `commit`); then it ends without them, and the next start does the rest.",
    )
    merge_at_stop_secs: float = _setting(
        60.0,
        seconds(zero=True),
        "How long the last MERGE, which brings the plain tables up to date, may take at a stop. Rows that it does not"
        " reach stay in the log, where snapshots and the next start find them. 0: no such MERGE.",
    )
    warm_standby: bool = _setting(
        True,
        flag(),
        "A standby rehearses transactions on empty batches, so that its first real one is as fast as any.",
    )
    keep_plans: bool = _setting(
        True,
        flag(),
        "Later batches reuse the plan of a small batch of rows, or of whole files, where a new plan could not give"
        " other rows; `explain()` says where.",
    )
    local_copies: bool = _setting(
        True,
        flag(),
        "States that batches look up have a copy on the hosts of Spark's workers, where a look-up takes milliseconds"
        " instead of Spark jobs. On a cluster each host has its own, in its temporary folder.",
    )
    local_copy_bytes_max: int = _setting(
        64 << 30,
        whole(1 << 20),
        "The largest local copy of one state, on a cluster of one shard of it; a state that needs more has none.",
        unit="bytes",
    )
    state_shards: int = _setting(
        0,
        whole(0),
        "On a cluster: into how many shards, by the hash of their keys, states and the tasks on them are cut. A host"
        " has the copies of the shards whose tasks run there. 0: as many as the executors had cores at the first start."
        " It may be another number after a restart: then hosts build their copies again.",
    )

    ackers: int = _setting(
        1,
        whole(0),
        "0: messages are not tracked; each is acknowledged when it is emitted. From 1 on they are; the number itself,"
        " Storm's acker tasks, changes nothing: one acker adds up a million messages in half a second.",
    )
    max_pending_messages: int = _setting(
        10_000,
        whole(1),
        "Messages of one spout (in a tuple topology: of one spout task) that may be delivered and not yet acknowledged"
        " or given up; a batch takes its share of them.",
        unit="messages",
    )
    max_replays: int = _setting(
        3, whole(0), "How often a failed message is tried again before it becomes a dead letter.", unit="replays"
    )
    replay_backoff_secs: float = _setting(
        1.0,
        seconds(zero=True),
        "How long after a failure the spout's `fail` is called; doubles with each failure of the same message.",
    )
    remember_messages_secs: float = _setting(
        600.0,
        seconds(zero=True),
        "How long an acknowledged or given-up message is recognised when its source delivers it again; after a restart"
        " counted back from the last such message.",
    )

    warehouse: str = _setting(
        "./trident-warehouse",
        path(),
        "Folder of the tables, the manifests and the status: a path, `s3a://BUCKET/PREFIX` or `hdfs://HOST:PORT/PATH`."
        " Not Spark's own warehouse.",
    )
    single_writer: bool = _setting(
        False,
        flag(),
        "Allows a store in which two writers can both create the same name. You guarantee that there are never two"
        " writers, a coordinator that was suspended and wakes up included.",
    )

    history_retention_txids: int = _setting(
        1000,
        whole(0),
        "How many past transactions keep their manifests (sources' positions, files of all states) and a row in the"
        " table `<topology>__<group>__transactions`. 0: none, and no such table.",
        unit="transactions",
    )
    history_retention_secs: float | None = _setting(
        None,
        seconds(zero=False, optional=True),
        "Removes older manifests, also those of the last `history_retention_txids`. `none`: no such limit.",
    )

    zookeeper: str = _setting(
        "embedded",
        text(
            pattern=HOSTS, expected='"embedded" or host:port,host:port, with one optional /chroot after the last host'
        ),
        "`embedded`: a server on this machine, for this warehouse alone. Otherwise the hosts.",
    )
    zookeeper_root: str = _setting(
        "/trident",
        text(pattern=ZNODE, expected="a path such as /trident, without a / at its end"),
        "The znode under which everything is stored.",
    )
    zookeeper_session_timeout_secs: float = _setting(
        20.0, seconds(zero=False), "Session timeout: a standby may take over after this time without contact."
    )
    zookeeper_connect_timeout_secs: float = _setting(
        15.0, seconds(zero=False), "How long the first connection may take before ZooKeeper counts as unreachable."
    )
    zookeeper_acl: str = _setting(
        "auto",
        choice("auto", "creator", "open"),
        "Clients that may use the znodes: `creator`, only those authenticated as their creator; `open`, all; `auto`,"
        " creator if any of `zookeeper_auth`, SASL or a TLS certificate of this client is set, else open.",
    )
    zookeeper_auth: str | None = _setting(
        None,
        text(optional=True, pattern=r"(?s)[a-z0-9]+:.+", expected="scheme:credential, such as digest:user:password"),
        "Credentials that the connection presents.",
        secret=True,
    )
    zookeeper_sasl_mechanism: str | None = _setting(
        None,
        choice("DIGEST-MD5", "GSSAPI", optional=True),
        "SASL mechanism; needs the extra `sasl` of this package (GSSAPI also `kerberos`).",
    )
    zookeeper_sasl_username: str | None = _setting(None, text(optional=True), "SASL user name.")
    zookeeper_sasl_password: str | None = _setting(None, text(optional=True), "SASL password.", secret=True)
    zookeeper_tls: bool = _setting(False, flag(), "Connect with TLS.")
    zookeeper_tls_ca_file: str | None = _setting(
        None,
        path(optional=True),
        "Certificates of the authorities that sign the servers', and of no others; `none`: the system's.",
    )
    zookeeper_tls_cert_file: str | None = _setting(None, path(optional=True), "Certificate that this client presents.")
    zookeeper_tls_key_file: str | None = _setting(
        None, path(optional=True), "Private key of that certificate; `none`: it is in the same file."
    )
    zookeeper_tls_key_password: str | None = _setting(
        None, text(optional=True), "Password of that private key.", secret=True
    )
    zookeeper_tls_verify: bool = _setting(True, flag(), "Check the servers' certificates and host names.")

    spark_master: str = _setting("local[*]", text(), "Spark master, when the topology makes its own session.")
    spark_conf: tuple[tuple[str, str], ...] = _setting(
        (),
        spark_conf(),
        "Spark settings of a session that the topology makes, `spark.executor.memory=4g; spark.ui.enabled=true`; they"
        " win over ours. Those of all sources add up: `[spark]` of the settings file, `TRIDENT_SPARK_CONF`,"
        " `TRIDENT_SPARK__executor__memory=4g`, `TridentConfig`, `--conf`.",
        secret=True,
    )
    python_archive: str | None = _setting(
        None,
        path(optional=True),
        "On a cluster: a packed environment (`venv-pack`, `conda-pack`; `.tar.gz`, `.zip`) whose `bin/python` the"
        " executors run; `none`: the Python of their hosts.",
    )
    driver_memory: str | None = _setting(
        None,
        text(optional=True, pattern=r"[1-9][0-9]*[kmgtKMGT]", expected="a size such as 4g or 512m"),
        "Heap of the driver's JVM, which is all of Spark with a local master; `none`: Spark's own, 1g.",
    )
    class_archive: bool = _setting(
        True,
        flag(),
        "A session that the topology makes starts from an archive of Spark's classes in the user's cache folder, which"
        " halves the start. The first process makes the archive in the background.",
    )
    batch_partitions: int | None = _setting(
        None,
        whole(1, optional=True),
        "Spark partitions of a batch; `none`: as its spout says, one for a small batch.",
        unit="partitions",
    )
    shuffle_partitions: int | None = _setting(
        None,
        whole(1, optional=True),
        "Spark partitions after a shuffle within a batch; `none`: as many as the batch has.",
        unit="partitions",
    )

    http: str = _setting(
        "",
        listen(),
        "The address for requests over HTTP: `3774` is `127.0.0.1:3774`; port 0 takes a free one. An address other than"
        " a loopback one needs `http_token`.",
    )
    http_token: str | None = _setting(
        None,
        text(optional=True, pattern=r"[\x21-\x7e]{16,}", expected="at least 16 characters without spaces"),
        "The token that a request must present, as `Authorization: Bearer <token>`.",
        secret=True,
    )
    metrics: bool = _setting(
        True,
        flag(),
        "Metrics for Prometheus at `/metrics` of the port `http`, and for OpenTelemetry where its environment variables"
        " configure an exporter.",
    )
    metrics_interval_secs: float = _setting(
        30.0,
        seconds(zero=False),
        "How often metrics read the tables' sizes and the disk's; for a warehouse in a store every 300 s at most.",
    )
    page: bool = _setting(
        True,
        flag(),
        "The live page at the port `http`. It shows what the topology does, values of states and rows of dead letters"
        " included, to everyone who may send requests there.",
    )

    progress: str = _setting(
        "auto",
        choice("auto", "terminal", "plain", "none"),
        "Progress on standard error: a display on a terminal, lines elsewhere, or nothing.",
    )
    progress_interval_secs: float = _setting(5.0, seconds(zero=True), "Least time between two plain progress lines.")
    status_interval_secs: float = _setting(1.0, seconds(zero=True), "Least time between two writings of `status.json`.")
    log_format: str = _setting(
        "plain",
        choice("plain", "json"),
        "`json`: one object a line on standard error, of each log record and of the progress; Spark's JVM logs so too,"
        " where the topology makes its own session.",
    )
    listener_classes: tuple[str, ...] = _setting(
        (),
        classes(),
        "Listeners of the topology's events, in addition to those that the program gives to `start`; each is made"
        " without arguments.",
    )

    def __init__(self, **settings: Any) -> None:
        given: Given = {}
        for source in (
            from_file(_FIELDS, os.environ),
            from_environment(_FIELDS, os.environ),
            spark_conf_of(os.environ),
            named(_FIELDS, settings, type(self).__name__),
        ):
            given = _added(given, source)
        self._fill(given)

    def _fill(self, given: Given) -> None:
        origins = {}
        for name, setting in _FIELDS.items():
            value, origins[name] = given.get(name, (setting.default, "default"))
            object.__setattr__(self, name, accepted(setting, value, origins[name]) if name in given else value)
        object.__setattr__(self, "_origins", origins)
        self._check()

    def replace(self, **settings: Any) -> TridentConfig:
        """Returns a copy with these settings; it does not read the environment again."""
        return self._with(named(_FIELDS, settings, type(self).__name__))

    def with_overrides(self, assignments: Iterable[str]) -> TridentConfig:
        """A copy with ``key=value`` texts on top, as ``--set`` gives them.

        Raises:
            ConfigError: a text is not of the form, or as in the constructor.
        """
        return self._with(from_texts(_FIELDS, assignments))

    def _with(self, given: Given) -> TridentConfig:
        copy = object.__new__(type(self))
        copy._fill(_added({name: (getattr(self, name), self.origin(name)) for name in _FIELDS}, given))
        return copy

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: "default", "TRIDENT_…", "TridentConfig" or "--set"."""
        origins: dict[str, str] = vars(self)["_origins"]
        return origins[name]

    def shown(self) -> dict[str, Any]:
        """Every setting as it may be shown: a secret that is given reads ``***``."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return {name: HIDDEN if is_secret_setting(name) and value else value for name, value in values.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Pickled, it has no secrets: a function that names its config takes it along to the executors."""
        return {**vars(self), **{name: one.default for name, one in _FIELDS.items() if is_secret_setting(name)}}

    def __copy__(self) -> TridentConfig:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TridentConfig:
        return self

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.shown().items() if self.origin(name) != "default"]
        return f"{type(self).__name__}({', '.join(given)})"

    def _check(self) -> None:
        if (self.zookeeper_sasl_username or self.zookeeper_sasl_password) and not self.zookeeper_sasl_mechanism:
            raise ConfigError(
                "a SASL user is given without zookeeper_sasl_mechanism",
                expected=_FIELDS["zookeeper_sasl_mechanism"].metadata["kind"].expected,
            )
        if self.zookeeper_tls_key_file and not self.zookeeper_tls_cert_file:
            raise ConfigError("zookeeper_tls_key_file is given without zookeeper_tls_cert_file")
        if self.zookeeper_sasl_mechanism == "DIGEST-MD5" and not (
            self.zookeeper_sasl_username and self.zookeeper_sasl_password
        ):
            raise ConfigError("DIGEST-MD5 needs zookeeper_sasl_username and zookeeper_sasl_password")
        if not self.zookeeper_tls:
            for name in ("ca_file", "cert_file"):
                if getattr(self, f"zookeeper_tls_{name}"):
                    # Silently, the connection would be one that anybody can read.
                    raise ConfigError(f"zookeeper_tls_{name} is given without zookeeper_tls=true")
        if self.zookeeper_acl == "creator" and not self.authenticates:
            raise ConfigError(
                "zookeeper_acl=creator needs a connection that is authenticated",
                expected="zookeeper_auth, zookeeper_sasl_mechanism or zookeeper_tls_cert_file",
            )
        given = dict(self.spark_conf)
        for key, name in _OWN_SETTINGS.items():
            if key in given and self.origin(name) != "default" and given[key] != getattr(self, name):
                raise ConfigError(f"{name} and {key} in spark_conf contradict each other", expected="one of them")
        if self.http and not self.http_token and not is_loopback(listen_address(self.http)[0]):
            raise ConfigError(
                "http would answer other machines, and anybody there, without http_token",
                found=f"http={self.http!r}",
                expected="a loopback address such as 127.0.0.1:3774, or http_token as well",
            )

    def with_spark_conf(self, assignments: Iterable[str]) -> TridentConfig:
        """A copy with ``spark.key=value`` texts beside the Spark settings that there are, as ``--conf`` gives them.

        Raises:
            ConfigError: a text is not of the form; its value is not shown.
        """
        given = dict(self.spark_conf)
        for assignment in assignments:
            key, equals, value = assignment.partition("=")
            if not equals or not key.strip().startswith("spark."):
                raise ConfigError("--conf cannot be read", found=repr(key.strip()), expected="spark.key=value")
            given[key.strip()] = value.strip()
        return self._with({"spark_conf": (given, "--conf")}) if given != dict(self.spark_conf) else self

    def warehouse_place(self) -> Place:
        """The warehouse as an absolute path without links, or as a URL of a store.

        This process then reaches the store as the Spark settings that begin with ``spark.hadoop.`` say; the rest comes
        from the store's own chain of settings and credentials.

        Raises:
            ConfigError: it is a URL of a kind that the framework cannot keep files in.
        """
        place = warehouse_place(self.warehouse)
        if not place.is_local:
            hadoop = {key[len(_HADOOP) :]: value for key, value in self.spark_conf if key.startswith(_HADOOP)}
            storage.configure(place.root, {**storage.settings_of(place.root), **hadoop})
        return place

    @property
    def authenticates(self) -> bool:
        """Tells whether the connection to ZooKeeper presents an identity."""
        return bool(self.zookeeper_auth or self.zookeeper_sasl_mechanism or self.zookeeper_tls_cert_file)

    @property
    def keeps_for_creator(self) -> bool:
        """Tells whether znodes are left to their creator alone: the setting ``zookeeper_acl``, decided."""
        return self.zookeeper_acl == "creator" or (self.zookeeper_acl == "auto" and self.authenticates)

    def kazoo_options(self) -> dict[str, Any]:
        """The TLS, SASL and ACL settings as arguments of ``kazoo.client.KazooClient``."""
        options: dict[str, Any] = {}
        if self.zookeeper_auth:
            options["auth_data"] = [tuple(self.zookeeper_auth.split(":", 1))]
        if self.zookeeper_sasl_mechanism:
            sasl = {
                "mechanism": self.zookeeper_sasl_mechanism,
                "username": self.zookeeper_sasl_username,
                "password": self.zookeeper_sasl_password,
            }
            options["sasl_options"] = {key: value for key, value in sasl.items() if value is not None}
        if self.keeps_for_creator:
            from kazoo.security import CREATOR_ALL_ACL  # time: 30 ms of every command

            options["default_acl"] = CREATOR_ALL_ACL
        if self.zookeeper_tls:
            options |= {
                "use_ssl": True,
                "ca": self.zookeeper_tls_ca_file,
                "certfile": self.zookeeper_tls_cert_file,
                "keyfile": self.zookeeper_tls_key_file,
                "keyfile_password": self.zookeeper_tls_key_password,
                "verify_certs": self.zookeeper_tls_verify,
                "check_hostname": self.zookeeper_tls_verify,
            }
        return options


def _added(weaker: Given, stronger: Given) -> Given:
    """Settings with their origins from two sources: the user of a topology adds Spark settings to its author's.

    ``spark.master`` is the setting ``spark_master``, and as strong as its source.
    """
    together = {**weaker, **stronger}
    if "spark_conf" in stronger:
        value, origin = stronger["spark_conf"]
        conf = dict(accepted(_FIELDS["spark_conf"], value, origin))
        master = conf.get("spark.master")
        if master is not None and stronger.get("spark_master", (master, ""))[0] == master:
            together["spark_master"] = (conf.pop("spark.master"), origin)
        before, earlier = weaker.get("spark_conf", ((), ""))
        origins = [*(earlier.split(", ") if dict(before) else ()), origin]
        together["spark_conf"] = ({**dict(before), **conf}, ", ".join(dict.fromkeys(origins)))
    return together


_FIELDS = {setting.name: setting for setting in fields(TridentConfig)}


def is_secret_setting(name: str) -> bool:
    """Tells whether the value of a setting is never shown."""
    return name in _FIELDS and bool(_FIELDS[name].metadata["secret"])


def markdown_table() -> str:
    """The text of ``docs/configuration.md``."""
    lines = [
        "# Configuration",
        "",
        "Made from `trident/config.py` by `python -m trident.config > docs/configuration.md`; a test compares them.",
        "",
        *ABOUT_SOURCES.splitlines(),
    ]
    for name, setting in _FIELDS.items():
        about = setting.metadata
        if name in _SECTIONS:
            lines += [
                "",
                f"## {_SECTIONS[name]}",
                "",
                "| key | default | unit | allowed | meaning |",
                "|---|---|---|---|---|",
            ]
        assert setting.default is not MISSING, name
        allowed = about["kind"].expected.replace("|", "\\|")
        doc = about["doc"] + (" Secret: never shown." if about["secret"] else "")
        lines.append(f"| `{name}` | `{_default_text(setting.default)}` | {about['unit']} | {allowed} | {doc} |")
    return "\n".join(lines) + "\n"


def _default_text(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return str(default).lower()
    if default == ():
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


if __name__ == "__main__":
    print(markdown_table(), end="")


def as_config(config: object) -> TridentConfig:
    """The settings that a caller gave; None: the defaults and the environment."""
    if config is None:
        return TridentConfig()
    if not isinstance(config, TridentConfig):
        raise ConfigError(
            "config is no settings object",
            found=described(config),
            expected="a TridentConfig, or None",
            action="give single settings by name: start(max_attempts=3), or TridentConfig(max_attempts=3)",
        )
    return config
