"""Settings: one table, four sources in order, and errors that say what to write instead."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from trident.config import TridentConfig, markdown_table
from trident.coordinators.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for variable in [name for name in os.environ if name.startswith("TRIDENT_")]:
        monkeypatch.delenv(variable)


def test_the_defaults_are_those_of_the_semantics():
    config = TridentConfig()
    assert (config.max_spout_pending, config.max_attempts, config.message_timeout_secs) == (3, 8, 30.0)
    assert (config.batch_emit_interval_secs, config.warehouse) == (0.0, "./trident-warehouse")
    assert (config.zookeeper, config.zookeeper_root) == ("embedded", "/trident")
    assert (config.zookeeper_session_timeout_secs, config.zookeeper_connect_timeout_secs) == (20.0, 15.0)
    assert config.spark_master == "local[*]"


def test_each_source_is_stronger_than_the_one_before(monkeypatch):
    assert (TridentConfig().max_attempts, TridentConfig().origin("max_attempts")) == (8, "default")
    monkeypatch.setenv("TRIDENT_MAX_ATTEMPTS", "5")
    assert (TridentConfig().max_attempts, TridentConfig().origin("max_attempts")) == (5, "TRIDENT_MAX_ATTEMPTS")
    explicit = TridentConfig(max_attempts=4)
    assert (explicit.max_attempts, explicit.origin("max_attempts")) == (4, "TridentConfig")
    overridden = explicit.with_overrides(["max_attempts=3"])
    assert (overridden.max_attempts, overridden.origin("max_attempts")) == (3, "--set")
    assert explicit.max_attempts == 4


def test_an_explicit_value_equal_to_the_default_still_beats_the_environment(monkeypatch):
    monkeypatch.setenv("TRIDENT_MAX_ATTEMPTS", "5")
    assert TridentConfig(max_attempts=8).max_attempts == 8


def test_overrides_keep_the_other_settings_and_their_origin(monkeypatch):
    monkeypatch.setenv("TRIDENT_WAREHOUSE", "from-environment")
    config = TridentConfig(max_spout_pending=1)
    monkeypatch.setenv("TRIDENT_WAREHOUSE", "changed-later")
    copy = config.with_overrides(["max_attempts=2"]).replace(progress="none")
    assert (copy.warehouse, copy.max_spout_pending, copy.max_attempts, copy.progress) == (
        "from-environment",
        1,
        2,
        "none",
    )
    assert copy.origin("warehouse") == "TRIDENT_WAREHOUSE"


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("max_spout_pending=1_0", "max_spout_pending", 10),
        ("message_timeout_secs=none", "message_timeout_secs", None),
        ("message_timeout_secs=0.5", "message_timeout_secs", 0.5),
        ("zookeeper_tls=yes", "zookeeper_tls", True),
        ("zookeeper_tls=0", "zookeeper_tls", False),
        ("zookeeper=a:2181, b:2181/chroot", "zookeeper", "a:2181, b:2181/chroot"),
        ("zookeeper=[::1]:2181", "zookeeper", "[::1]:2181"),
        ("zookeeper_auth=digest:user:pass=word", "zookeeper_auth", "digest:user:pass=word"),
        ("warehouse = /data/w ", "warehouse", "/data/w"),
    ],
)
def test_text_is_read_as_the_settings_type(assignment, name, value):
    read = getattr(TridentConfig().with_overrides([assignment]), name)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_spout_pending", 0, "at least 1"),
        ("max_spout_pending", True, "whole number"),
        ("max_spout_pending", "many", "whole number"),
        ("max_attempts", 2.5, "whole number"),
        ("max_attempts", None, "whole number"),
        ("message_timeout_secs", 0, "more than 0"),
        ("message_timeout_secs", float("nan"), "seconds"),
        ("batch_emit_interval_secs", -1, "0 or more"),
        ("zookeeper", "http://host", "host:port"),
        ("zookeeper", "", "host:port"),
        ("zookeeper", "h1:1/a,h2:2/a", "one optional /chroot after the last host"),
        ("zookeeper", "h:1/a//b", "/chroot"),
        ("zookeeper", "h:1/a/../b", "/chroot"),
        ("zookeeper_root", "trident", "/trident"),
        ("zookeeper_root", "/trident/", "/trident"),
        ("zookeeper_root", "/a/../b", "/trident"),
        ("zookeeper_tls", "perhaps", "true or false"),
        ("progress", "loud", "auto, terminal, plain, none"),
        ("warehouse", " ", "a path"),
    ],
)
def test_an_impossible_value_says_what_was_found_and_expected(name, value, expected):
    with pytest.raises(ConfigError) as caught:
        TridentConfig(**{name: value})
    assert name in str(caught.value)
    assert caught.value.found == repr(value)
    assert expected in str(caught.value.expected)


def test_an_impossible_value_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("TRIDENT_MAX_ATTEMPTS", "few")
    with pytest.raises(ConfigError, match="TRIDENT_MAX_ATTEMPTS.*found: 'few'"):
        TridentConfig()


def test_an_unknown_name_is_an_error_with_the_nearest_names():
    with pytest.raises(ConfigError, match="no setting 'max_atempts'.*max_attempts"):
        TridentConfig(max_atempts=3)
    with pytest.raises(ConfigError, match="--set: there is no setting 'pending'"):
        TridentConfig().with_overrides(["pending=3"])
    with pytest.raises(ConfigError, match="key=value"):
        TridentConfig().with_overrides(["max_attempts"])


def test_a_misspelt_variable_is_an_error_and_a_foreign_one_is_not(monkeypatch):
    monkeypatch.setenv("TRIDENT_FAULTS", "")  # this framework's, but no setting
    monkeypatch.setenv("TRIDENT_SERVICE_PORT", "tcp://10.0.0.1:80")  # what Kubernetes sets for a service "trident"
    TridentConfig()
    monkeypatch.setenv("TRIDENT_MAX_ATEMPTS", "3")
    with pytest.raises(ConfigError, match="TRIDENT_MAX_ATEMPTS.*TRIDENT_MAX_ATTEMPTS"):
        TridentConfig()


def test_secrets_are_not_shown():
    config = TridentConfig(zookeeper_auth="digest:user:hunter2", zookeeper_tls_key_password="hunter2")
    assert "hunter2" not in repr(config) + str(config.shown())
    assert config.shown()["zookeeper_auth"] == "***" and config.shown()["zookeeper_sasl_password"] is None
    with pytest.raises(ConfigError) as caught:
        TridentConfig(zookeeper_auth="hunter2")
    assert "hunter2" not in str(caught.value)


def test_everything_that_sounds_like_a_secret_is_one():
    sounding = [one for one in fields(TridentConfig) if "password" in one.name or "auth" in one.name]
    assert len(sounding) == 3 and all(one.metadata["secret"] for one in sounding)


@pytest.mark.parametrize(
    "given",
    [
        {"spark.ui.enabled": True, "spark.executor.memory": "4g"},
        "spark.ui.enabled=true; spark.executor.memory=4g;",
        '{"spark.ui.enabled": true, "spark.executor.memory": "4g"}',
    ],
)
def test_spark_settings_are_a_mapping_or_text(given, monkeypatch):
    wanted = (("spark.executor.memory", "4g"), ("spark.ui.enabled", "true"))
    config = TridentConfig(spark_conf=given)
    assert config.spark_conf == wanted and hash(config) is not None
    more = config.with_spark_conf(["spark.ui.enabled=false", "spark.a=x=y;z"])
    assert dict(more.spark_conf) == {"spark.a": "x=y;z", "spark.executor.memory": "4g", "spark.ui.enabled": "false"}
    assert config.with_spark_conf([]) is config
    if isinstance(given, str):
        monkeypatch.setenv("TRIDENT_SPARK_CONF", given)
        assert TridentConfig().spark_conf == wanted
    # They may hold keys of a store: never shown, never sent.
    assert "4g" not in repr(config) + str(config.shown())
    assert pickle.loads(pickle.dumps(config)).spark_conf == ()


def settings_file(folder, text, monkeypatch):
    (folder / "trident.toml").write_text(text)
    monkeypatch.setenv("TRIDENT_SETTINGS", str(folder / "trident.toml"))
    return str(folder / "trident.toml")


def test_a_settings_file_is_stronger_than_the_defaults_and_weaker_than_the_rest(tmp_path, monkeypatch):
    file = settings_file(
        tmp_path, 'warehouse = "/lake"\nmax_attempts = 5\nmax_replays = 1\nmessage_timeout_secs = "none"\n', monkeypatch
    )
    config = TridentConfig(max_replays=2)
    assert (config.warehouse, config.origin("warehouse"), config.message_timeout_secs) == ("/lake", file, None)
    assert (config.max_attempts, config.max_replays, config.origin("max_replays")) == (5, 2, "TridentConfig")
    monkeypatch.setenv("TRIDENT_MAX_ATTEMPTS", "6")
    assert TridentConfig().max_attempts == 6
    assert TridentConfig().with_overrides(["max_attempts=7"]).max_attempts == 7


def test_spark_settings_of_all_sources_add_up(tmp_path, monkeypatch):
    settings_file(
        tmp_path,
        '[spark]\nmaster = "spark://a:7077"\nexecutor.memory = "1g"\nexecutor.cores = 2\nspeculation = true\n'
        '"speculation.interval" = "1s"\n[spark.sql]\nshuffle.partitions = 3\n',
        monkeypatch,
    )
    monkeypatch.setenv("TRIDENT_SPARK_CONF", "spark.executor.memory=2g; spark.a=conf; spark.b=conf; spark.c=conf")
    monkeypatch.setenv("TRIDENT_SPARK__executor__memoryOverhead", "9m")
    monkeypatch.setenv("TRIDENT_SPARK__B", "single")
    monkeypatch.setenv("TRIDENT_SPARK__C", "single")
    config = TridentConfig(spark_conf={"spark.c": "code"}).with_spark_conf(["spark.d=line"])
    assert (config.spark_master, config.origin("spark_master")) == ("spark://a:7077", str(tmp_path / "trident.toml"))
    assert dict(config.spark_conf) == {
        "spark.executor.memory": "2g",
        "spark.executor.cores": "2",
        "spark.executor.memoryOverhead": "9m",
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
        "spark.sql.shuffle.partitions": "3",
        "spark.a": "conf",
        "spark.b": "single",
        "spark.c": "code",
        "spark.d": "line",
    }
    assert "TRIDENT_SPARK__" in TridentConfig().origin("spark_conf")
    started = config.replace(spark_conf={"spark.a": "start"}).spark_conf
    assert dict(started) == {**dict(config.spark_conf), "spark.a": "start"}


def test_the_master_of_the_stronger_source_counts_under_either_name(tmp_path, monkeypatch):
    settings_file(tmp_path, '[spark]\nmaster = "spark://a:7077"\n', monkeypatch)
    assert TridentConfig().spark_master == "spark://a:7077"
    assert TridentConfig().with_overrides(["spark_master=local[2]"]).spark_master == "local[2]"
    config = TridentConfig(spark_master="local[3]").with_spark_conf(["spark.master=yarn"])
    assert (config.spark_master, config.origin("spark_master"), config.spark_conf) == ("yarn", "--conf", ())
    monkeypatch.setenv("TRIDENT_SPARK__MASTER", "local[4]")
    assert TridentConfig().spark_master == "local[4]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_atempts = 3", "no setting 'max_atempts'.*max_attempts"),
        ('max_attempts = "few"', "trident.toml: max_attempts has an impossible value; found: 'few'"),
        ('zookeeper_auth = "digest:hunter2', "is no TOML; found: end of document"),
        ("[spark]\nexecutor.cores = [1]\n", "trident.toml: spark_conf has an impossible value"),
        ('spark = "yarn"', "Spark settings are a table"),
        ('spark_conf = "spark.a=1"', "Spark settings are a table"),
    ],
)
def test_what_is_wrong_in_a_settings_file_is_told_with_its_name_and_no_secret(text, told, tmp_path, monkeypatch):
    settings_file(tmp_path, text, monkeypatch)
    with pytest.raises(ConfigError, match=told) as caught:
        TridentConfig()
    assert "hunter2" not in str(caught.value)


def test_a_settings_file_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setenv("TRIDENT_SETTINGS", "/nowhere/trident.toml")
    with pytest.raises(ConfigError, match="/nowhere/trident.toml cannot be read; found: No such file"):
        TridentConfig()


@pytest.mark.parametrize(
    "given", ["executor.memory=4g", "spark.a", "spark.a b=1", "[1]", '{"spark.a": {}}', {"spark.a": None}, 3]
)
def test_what_is_no_spark_setting_is_refused(given):
    with pytest.raises(ConfigError, match="spark_conf has an impossible value"):
        TridentConfig(spark_conf=given)


@pytest.mark.parametrize("given", ["spark.a", "ui=1", "=x"])
def test_what_conf_cannot_read_is_refused_and_its_value_not_shown(given):
    with pytest.raises(ConfigError, match="--conf cannot be read"):
        TridentConfig().with_spark_conf([given + "hunter2" if "=" in given else given])


def test_two_settings_of_one_thing_must_agree():
    with pytest.raises(ConfigError, match="driver_memory and spark.driver.memory"):
        TridentConfig(driver_memory="2g", spark_conf={"spark.driver.memory": "4g"})
    TridentConfig(driver_memory="2g", spark_conf={"spark.driver.memory": "2g"})
    with pytest.raises(ConfigError, match="driver_memory has an impossible value"):
        TridentConfig(driver_memory="lots")


def test_spark_settings_reach_the_session_that_is_made():
    from trident.cli import given_spark_settings
    from trident.spark.session import spark_settings

    config = TridentConfig(driver_memory="3g", shuffle_partitions=7, spark_conf={"spark.ui.enabled": True})
    assert spark_settings(config) == {
        "spark.master": "local[*]",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "7",
        "spark.ui.enabled": "true",
    }
    assert "spark.master" not in given_spark_settings(config), "the file's own settings may say another"
    assert given_spark_settings(config.replace(spark_master="local[1]"))["spark.master"] == "local[1]"


def test_settings_that_need_one_another_are_checked_together():
    with pytest.raises(ConfigError, match="zookeeper_sasl_mechanism"):
        TridentConfig(zookeeper_sasl_username="me")
    with pytest.raises(ConfigError, match="zookeeper_tls_cert_file"):
        TridentConfig(zookeeper_tls_key_file="key.pem")
    with pytest.raises(ConfigError, match="authenticated"):
        TridentConfig(zookeeper_acl="creator")


def test_the_kazoo_options_are_those_that_kazoo_takes():
    from kazoo.client import KazooClient

    config = TridentConfig(
        zookeeper_auth="digest:user:pass:word",
        zookeeper_acl="creator",
        zookeeper_tls=True,
        zookeeper_tls_ca_file="ca.pem",
        zookeeper_tls_verify=True,
    )
    options = config.kazoo_options()
    assert options["auth_data"] == [("digest", "user:pass:word")]
    client = KazooClient("localhost:2181", **options)  # kazoo refuses names that it does not know
    assert client.use_ssl and client.verify_certs and client.ca == "ca.pem"
    assert TridentConfig().kazoo_options() == {}


def test_home_is_expanded_in_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert TridentConfig().with_overrides(["warehouse=~/w"]).warehouse == "/home/somebody/w"
    assert TridentConfig(warehouse=Path("w")).warehouse == "w"


def test_a_config_is_a_value():
    config = TridentConfig(max_attempts=2)
    assert pickle.loads(pickle.dumps(config)) == config != TridentConfig()
    with pytest.raises(AttributeError):
        config.max_attempts = 3


def test_every_setting_has_a_meaning_and_times_say_their_unit():
    for one in fields(TridentConfig):
        assert one.metadata["doc"].endswith("."), one.name
        assert one.name.endswith("_secs") == (one.metadata["unit"] == "s"), one.name


def test_the_documentation_is_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == markdown_table(), (
        "run: python -m trident.config > docs/configuration.md"
    )
