"""Arguments of a KafkaSpout: refused with a word when they are given; secrets are in no text."""

from __future__ import annotations

import builtins
import datetime
import pickle

import pytest

from trident import KafkaSpout, OpaqueKafkaSpout, SpoutKind
from trident.coordinators.errors import ConfigError, EnvironmentProblem, TopologyError
from trident.kafka.client import Connection, is_secret
from trident.spouts.contracts import SpoutContext
from trident.states.core.addresses import check_hosts

SECRET = "pass-of-a-kafka-user"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bootstrap": ""}, "the brokers of a KafkaSpout"),
        ({"bootstrap": f"user:{SECRET}@host:9092"}, "the brokers of a KafkaSpout"),
        ({"topics": ()}, "needs topics, or a pattern .* found: neither"),
        ({"pattern": "a"}, "needs topics, or a pattern .* found: both"),
        ({"topics": (), "pattern": "("}, "the pattern of a KafkaSpout"),
        ({"topics": ["a", "a"]}, "each name once"),
        ({"topics": [1]}, "the topics of a KafkaSpout"),
        ({"topics": ["orders in"]}, "found: 'orders in'; expected: a name of at most 249 letters"),
        ({"topics": [".."]}, "the topics of a KafkaSpout"),
        ({"topics": ["t" * 250]}, "the topics of a KafkaSpout"),
        ({"topics": (), "pattern": b"t"}, "expected: a regular expression, as text"),
        ({"start": {"u": {0: 1}}}, "offsets of topic 'u', which it does not read; found: u; expected: t"),
        ({"start": "newest"}, "start of a KafkaSpout"),
        ({"start": datetime.datetime(2026, 1, 1)}, "a datetime with a time zone"),
        ({"start": {"t": {0: -1}}}, "start of a KafkaSpout"),
        ({"start_group": ""}, "start_group of a KafkaSpout"),
        ({"commit_group": 3}, "commit_group of a KafkaSpout"),
        ({"isolation": "serializable"}, "read_committed or read_uncommitted"),
        ({"columns": ["value", "topik"]}, "found: topik"),
        ({"columns": []}, "found: none"),
        ({"min_rows": 5, "max_rows": 4}, "the wrong way round"),
        ({"poll_interval_secs": -1}, "poll_interval_secs"),
        ({"patience_secs": 0}, "patience_secs"),
        ({"config": {"enable.auto.commit": True}}, "positions are stored with each transaction"),
        ({"config": {"isolation.level": "read_committed"}}, "give it as isolation="),
        ({"config": ["a"]}, "settings of librdkafka by name"),
        ({"config": {"sasl.password": [SECRET]}}, "texts, numbers"),
        ({"secrets": {"sasl.password": SECRET}}, "'env:VARIABLE' or 'file:/path'"),
        ({"secrets": {"auto.offset.reset": "env:X"}}, "the spout says where each batch begins"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_without_secrets(arguments, message) -> None:
    with pytest.raises(TopologyError, match=message) as raised:
        KafkaSpout(**{"bootstrap": "h:9092", "topics": "t", **arguments})
    assert SECRET not in str(raised.value)


def test_secrets_come_from_the_environment_and_from_files_and_are_in_no_text(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OF_TESTS", SECRET)
    (tmp_path / "key").write_text("pass of the key\n")
    spout = KafkaSpout(
        "h:9092",
        "t",
        config={"sasl.oauthbearer.client.secret": "client's secret"},
        secrets={"sasl.password": "env:OF_TESTS", "ssl.key.password": f"file:{tmp_path / 'key'}"},
    )
    assert repr(spout) == "KafkaSpout('h:9092', ['t'])"
    connection = spout._settings.connection()
    assert (connection.config["sasl.password"], connection.config["ssl.key.password"]) == (SECRET, "pass of the key")
    assert repr(connection) == "Connection('h:9092')" and pickle.loads(pickle.dumps(connection)) == connection
    said = connection.clean(f"h:9092 refused {SECRET}, pass of the key and client's secret")
    assert said == "h:9092 refused ***, *** and ***"
    monkeypatch.delenv("OF_TESTS")
    context = SpoutContext(None, "t", "s", tmp_path, "i")
    with pytest.raises(ConfigError, match="environment variable that is not set; expected: OF_TESTS"):
        spout.get_coordinator(context)


@pytest.mark.parametrize(
    "setting",
    "sasl.password ssl.key.password ssl.key.pem sasl.oauthbearer.client.secret sasl.oauthbearer.config "
    "sasl.oauthbearer.assertion.private.key.passphrase SSL.Keystore.Password".split(),
)
def test_settings_with_credentials_are_known(setting: str) -> None:
    assert is_secret(setting) and Connection({setting: "x1", "bootstrap.servers": "h"}).clean("a x1") == "a ***"


def test_a_secret_of_any_name_is_struck_out_also_where_a_part_of_it_is_quoted(monkeypatch) -> None:
    monkeypatch.setenv("OF_TESTS", f"principal=me lifeSeconds={SECRET} scope='read all'")
    monkeypatch.setenv("A_COMMAND", "kinit -k me")
    secrets = {"sasl.oauthbearer.config": "env:OF_TESTS", "sasl.kerberos.kinit.cmd": "env:A_COMMAND"}
    connection = pickle.loads(pickle.dumps(KafkaSpout("h:9092", "t", secrets=secrets)._settings.connection()))
    said = connection.clean(f"Invalid lifeSeconds: {SECRET} at h:9092, by kinit -k me")
    assert said == "Invalid lifeSeconds: *** at h:9092, by ***"


def test_the_schema_has_the_columns_that_are_wanted_and_the_kind_says_what_a_replay_holds() -> None:
    assert KafkaSpout("h:1", "t").output_schema.simpleString() == (
        "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>,timestamp:timestamp,"
        "topic:string,partition:int,offset:bigint>"
    )
    assert KafkaSpout("h:1", "t", columns=["offset", "value"]).output_schema.names == ["offset", "value"]
    assert KafkaSpout("h:1", "t").kind is SpoutKind.TRANSACTIONAL
    assert OpaqueKafkaSpout("h:1", "t").kind is SpoutKind.OPAQUE


def test_a_loopback_address_is_refused_on_a_cluster() -> None:
    check_hosts(KafkaSpout("kafka-1:9092", "t"), "the spout", "spark://master:7077")
    with pytest.raises(TopologyError, match="lives on one host"):
        check_hosts(KafkaSpout("kafka-1:9092,localhost:9092", "t"), "the spout", "spark://master:7077")


def test_without_the_client_the_error_names_what_to_install(tmp_path, monkeypatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest):
        if name.partition(".")[0] == "confluent_kafka":
            raise ImportError("No module named 'confluent_kafka'")
        return imported(name, *rest)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'trident-spark\[kafka\]'"):
        KafkaSpout("h:1", "t").get_coordinator(SpoutContext(None, "t", "s", tmp_path, "i"))
