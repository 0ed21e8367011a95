"""One real Kafka broker for the tests of a process: KRaft, own port, own folder, killed at the end."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.servers.zk_fixtures import eventually
from tests.servers.zk_security import Certificates
from tests.wire.kafka import KafkaLanguage
from tests.wire.relay import Relay
from trident.coordinators.embedded_server import LoopbackPort, die_with_parent
from trident.coordinators.errors import EnvironmentProblem
from trident.coordinators.processes import find_java
from trident.spark.jars import resolved_jars

PACKAGES = ["org.apache.kafka:kafka_2.13:4.4.0", "org.apache.kafka:kafka-tools-api:4.4.0"]
PASSWORD = "pass-of-the-reader"
START_SECS_MAX = 120.0
# The broker's heap is small, and it starts quickly rather than running fast.
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class KafkaBroker:
    """A broker that is its own controller. Its data stays in the folder: it can be killed, and start again there.

    Beside a plain port it has one with TLS and passwords, and one whose clients come through a relay (tests/wire).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = LoopbackPort(), LoopbackPort(), LoopbackPort()
        self._wire_ports = LoopbackPort(), LoopbackPort()
        self.certificates: Certificates | None = None
        self._process: subprocess.Popen | None = None
        self._clients: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0].number}"

    @property
    def secured(self) -> str:
        """The port that wants TLS and the password of the user "reader"; its certificate is for this name."""
        return f"localhost:{self._ports[2].number}"

    @property
    def wired(self) -> str:
        """The address at which :meth:`wire` listens; the broker names it to the clients that come through it."""
        return f"127.0.0.1:{self._wire_ports[0].number}"

    def wire(self) -> Relay:
        """A relay before the broker; close it."""
        before, behind = (port.number for port in self._wire_ports)
        return Relay(before, behind, KafkaLanguage())

    def start(self) -> None:
        """Formats the folder the first time, starts the broker, and waits until it answers."""
        properties = self.folder / "server.properties"
        if not properties.exists():
            (self.folder / "certificates").mkdir(parents=True, exist_ok=True)
            self.certificates = Certificates(self.folder / "certificates")
            properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
            cluster = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")  # "-…" is an option
            format = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
            done = subprocess.run(format, capture_output=True, text=True, timeout=START_SECS_MAX)
            assert done.returncode == 0, done.stdout + done.stderr
        with open(self.folder / "broker.log", "ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        self.wait()

    def wait(self) -> None:
        """Returns once the broker answers for its metadata."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + START_SECS_MAX
        while True:
            try:
                if self.admin().list_topics(timeout=2).brokers:
                    return
            except KafkaException:
                pass
            assert self._process is not None and self._process.poll() is None and time.monotonic() < deadline, (
                "Kafka did not start:\n" + (self.folder / "broker.log").read_text(errors="replace")[-3000:]
            )

    def kill(self) -> None:
        """SIGKILL, as in a loss of power of the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    # --- clients ------------------------------------------------------------------------------

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if "admin" not in self._clients:
            self._clients["admin"] = AdminClient({**self._client(), "socket.timeout.ms": 10_000})
        return self._clients["admin"]

    def producer(self, **settings: Any) -> Any:
        from confluent_kafka import Producer

        # Without idempotence batches that are sent again, as just behind the making of a topic, change their places.
        return Producer({**self._client(), "linger.ms": 5, "enable.idempotence": True, **settings})

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "topic.metadata.propagation.max.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Makes a topic, and returns when it can be written to; a config's name has _ for each dot."""
        from confluent_kafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin().create_topics([new])[topic].result(30)
        self._until(lambda: self._answering(topic) == partitions)
        return topic

    def delete(self, topic: str) -> None:
        self.admin().delete_topics([topic])[topic].result(30)
        self._until(lambda: not self._partitions(topic))

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.admin().create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        self._until(lambda: self._answering(topic) == partitions)

    def _answering(self, topic: str) -> int:
        """How many partitions say where they end: a broker names a leader in its metadata before that one leads."""
        from confluent_kafka import KafkaException

        try:
            return len(self.ends(topic))
        except KafkaException:
            return 0

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        """Those that have a leader."""
        found = self.admin().list_topics(timeout=10).topics.get(topic)
        partitions = {} if found is None or found.error is not None else found.partitions
        return {number: one for number, one in partitions.items() if one.leader >= 0}

    def _until(self, done: Callable[[], bool]) -> None:
        assert eventually(done, 30)

    def put(self, topic: str, messages: Sequence[Any], partition: int = 0, **settings: Any) -> None:
        """Appends values, or (key, value) pairs, to one partition; returns when the broker has them all."""
        producer = self.producer(**settings)
        failed: list[Any] = []
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            while True:
                try:
                    producer.produce(
                        topic,
                        value=value,
                        key=key,
                        partition=partition,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0 and not failed, failed

    def put_in_transaction(self, topic: str, values: Sequence[Any], partition: int = 0, commit: bool = True) -> None:
        """Appends values, or (key, value) pairs, in one Kafka transaction, which leaves a control record in any case.

        Returns once the control record is there: the broker answers before it has written it.
        """
        marked = self.ends(topic)[partition] + len(values) + 1
        producer = self.producer(**{"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(60)
        producer.begin_transaction()
        for message in values:
            key, value = message if isinstance(message, tuple) else (None, message)
            producer.produce(topic, value=value, key=key, partition=partition)
        assert producer.flush(60) == 0
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self._until(lambda: self.ends(topic)[partition] >= marked)

    def ends(self, topic: str) -> dict[int, int]:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in self._partitions(topic)}
        return {at.partition: info.result(30).offset for at, info in self.admin().list_offsets(wanted).items()}

    def topic_id(self, topic: str) -> str:
        from confluent_kafka import TopicCollection

        return str(self.admin().describe_topics(TopicCollection([topic]))[topic].result(30).topic_id)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """The messages before an offset expire."""
        from confluent_kafka import TopicPartition

        at = TopicPartition(topic, partition, offset)
        self.admin().delete_records([at])[at].result(30)

    def committed(self, group: str, topic: str, partitions: int = 1) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(partitions)])
        found = self.admin().list_consumer_group_offsets([asked])[group].result(30)
        return {at.partition: at.offset for at in found.topic_partitions}

    # --- its process --------------------------------------------------------------------------

    def _properties(self) -> dict[str, Any]:
        mine, controller, secured = (port.number for port in self._ports)
        before, behind = (port.number for port in self._wire_ports)
        server = (self.folder / "server.pem").resolve()
        assert self.certificates is not None
        server.write_text(self.certificates.server.read_text())
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{mine},CONTROLLER://127.0.0.1:{controller},SASL_SSL://127.0.0.1:{secured},"
            f"WIRE://127.0.0.1:{behind}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{mine},SASL_SSL://localhost:{secured},"
            f"WIRE://127.0.0.1:{before}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,"
            "WIRE:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
            f'required user_reader="{PASSWORD}";',
            "listener.name.sasl_ssl.ssl.keystore.type": "PEM",
            "listener.name.sasl_ssl.ssl.keystore.location": str(server),
            # Everyone may do everything with what no ACL names.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.threads": 1,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.cleaner.backoff.ms": 50,
            # Some tests write messages of long ago; by the default of a week the broker would delete them at once.
            "log.retention.ms": -1,
            "log.retention.check.interval.ms": 1_000,
            "log.segment.delete.delay.ms": 1_000,
            # One that was killed is taken for gone soon, so that it may come back.
            "broker.session.timeout.ms": 1_000,
            "broker.heartbeat.interval.ms": 250,
        }

    def _java(self, main: str, *arguments: str) -> list[str]:
        logging = self.folder / "log4j2.properties"
        if not logging.exists():
            logging.write_text(
                "rootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\n"
                "appender.out.type=Console\nappender.out.name=out\n"
            )
        return [find_java()[0], *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", _classpath(), main, *arguments]


def _classpath() -> str:
    """The broker's jars, and those of Spark that its resolver leaves out or that are newer: Scala's, slf4j's."""
    jars = [jar for jar in resolved_jars("Kafka", PACKAGES, ("",), {}) if "slf4j" not in os.path.basename(jar)]
    spark = (Path(pyspark.__file__).parent / "jars").iterdir()
    of_spark = ("slf4j-api-", "log4j-slf4j2-", "scala-library-", "scala-reflect-")
    return os.pathsep.join([*jars, *(str(jar) for jar in spark if jar.name.startswith(of_spark))])


@pytest.fixture(scope="session")
def kafka_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The broker of this process; the test is skipped, loudly, where there is none."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        pytest.skip("NOT TESTED: KafkaSpout. The client is missing: pip install 'trident-spark[kafka]'")
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except EnvironmentProblem as problem:
        pytest.skip(f"NOT TESTED: KafkaSpout. No jars of a broker: {problem}")
    yield broker
    broker.kill()


@pytest.fixture
def kafka(kafka_session: KafkaBroker) -> KafkaBroker:
    """The running broker, also after a test that has killed it."""
    if kafka_session._process is None:
        kafka_session.start()
    return kafka_session


@pytest.fixture
def wire(kafka: KafkaBroker) -> Iterator[Relay]:
    """The way to the broker for clients of ``kafka.wired``."""
    relay = kafka.wire()
    yield relay
    relay.close()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    """The name of a topic of this test alone, which is not made yet."""
    return f"t-{uuid.uuid4().hex[:10]}"
