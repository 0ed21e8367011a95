# make venv    .venv with the package and its test dependencies (done by the others when needed)
# make check   lint, format, order of imports, dead code, types: seconds; the first thing that make test does
# make quick   check, the pure tests, and those near what has changed since a commit (SINCE=HEAD): at each save
# make test    the tests, 6 to 10 minutes on two cores: of the longer targets below a sample, of kills, failover and soak none
# make long    the tests that make test leaves out because they take long: those that are marked so
# make proof   all of the long targets below, one after the other, about ten hours; what has passed on this code is not run
#              again; docs/proof.md is the record. SUITES="sweep fork" only these; ARGS="--minutes 40 --rotate" and others
# make proof-status  which of them are older than the code that they cover
# make demo    a word count that survives kill -9
# make bench   the benchmarks
# make matrix  every spout kind with six kinds of state under every fault, one state at a time
# make random  random topologies with random faults; N=200 of them
# make kills   broker, database, executors and coordinator killed at random under every state outside of the warehouse: FAULTS=50;
#              SEED=… again; requests to Kafka that are late, doubled, lost or cut
# make sweep   every fault point of a transaction, start or stop × outcome × time × kind of topology; pairs; real SIGKILLs; STORE=s3, STORE=hdfs;
#              on a disk those of rollback, fork, capture and the table of transactions, too
# make simulate  the production coordinator on simulated ZooKeeper, tables and clocks; SEEDS=20000 of them; in a quarter as many an
#              operator rolls back meanwhile
# make failover  an ensemble of three ZooKeeper servers, standbys, zombies, partitions; STORE=s3, hdfs;
#              how long a failover takes: python -m benchmarks failover
# make handover  leader, standby and command of a hand-over killed with SIGKILL at each of their fault points
# make rollback  a rollback killed at each of its steps
# make repair  everything that can contradict itself, and its repair
# make storage  disks that are full, read-only or slow, executors out of memory
# make migrate  a job of Structured Streaming over Kafka that is killed anywhere and goes on here; N=8000000 messages
# make fork    forks of a topology of 100 transactions, killed at each piece of I/O; TXIDS=100
# make stores  what each store promises, on HDFS too; a topology that is killed and resumed on S3 and on HDFS
# make cluster a standalone Spark cluster (master, workers) whose hosts have neither the framework nor the user's modules;
#              kills of its parts, with a shared folder, and on S3 and HDFS with hosts that share no disk
# make planted  every patch of tests/planted, with every test that must find it
# make replays  every transaction of the examples that can be replayed, run again and compared with what it has committed
# make soak    random kills every few seconds; MINUTES=60 of them
# make races   processes for one table version, stopped at any moment, and Delta's own writers; ROUNDS=200; STORE=s3, hdfs
# make types   every kind of key and value through log, reads, MERGE and table; make test takes a sixth of them
# make views   ten minutes of kills and MERGEs under a reader of several plain tables
# make docs    the documentation as a site, in build/site, with its links checked
# make jar     the jar of kept plans from java/, with a JDK 17: the bytes that are checked in
# make rooms   arrows between packages, those against their order, circles of files, lines
# make clean   removes what these made
#
# PYTHON=… chooses the interpreter that .venv is made with, JAVA_HOME=… the JDK.

SHELL := /bin/bash
.DEFAULT_GOAL := test

VENV := .venv
# Three test processes, each with its own Spark session and ZooKeeper server: with two, two cores are idle a sixth of
# the time. PYTEST_ARGS adds more.
PYTEST := -n 3 --dist worksteal
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/spark-classes.jsa
# The first of these that is Python 3.10 or later.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo "$$p" && break; done)
endif

# Spark's Python workers must be this interpreter, not the first python3 of the path.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# What is compiled once is kept: each of the many processes of the tests would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check quick test long proof proof-status demo bench matrix random kills sweep simulate failover handover rollback repair migrate fork storage stores cluster planted replays soak races types views jar docs rooms venv \
	clean check-python check-java

test: check-java check $(CLASSES)
	@echo "== tests: $(BIN)/python -m pytest $(PYTEST) -m 'not long' $(PYTEST_ARGS)"
	@$(BIN)/python -m pytest $(PYTEST) -m 'not long' $(PYTEST_ARGS)
	@$(BIN)/python -m tests.proof --status

SINCE := HEAD
quick: check
	@$(BIN)/python -m tests.quick --since $(SINCE)

proof: check-java $(STAMP) $(CLASSES)
	@$(BIN)/python -m tests.proof $(SUITES) $(ARGS)

proof-status: $(STAMP)
	@$(BIN)/python -m tests.proof --status

long: check-java $(STAMP) $(CLASSES)
	@$(BIN)/python -m pytest $(PYTEST) -m long $(PYTEST_ARGS)

check: $(STAMP)
	@echo "== check: ruff, import-linter, vulture, mypy"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/lint-imports --no-logo > $(VENV)/lint-imports || { cat $(VENV)/lint-imports; exit 1; }
	@$(BIN)/vulture
	@$(BIN)/mypy

matrix: check-java $(STAMP) $(CLASSES)
	@TRIDENT_MATRIX=all $(BIN)/python -m pytest $(PYTEST) tests/whole/test_matrix.py tests/operations/test_late_states.py $(PYTEST_ARGS)

N := 200
random: check-java $(STAMP) $(CLASSES)
	@TRIDENT_RANDOM=$(N) TRIDENT_SEQUENCES=20000 TRIDENT_HISTORIES=2000 $(BIN)/python -m pytest \
		tests/whole/test_random_topologies.py tests/streams/test_stream_differential.py tests/workers/test_timed_rules.py \
		tests/operations/test_timed.py tests/operations/test_late_forms.py tests/states/keyed/test_sequenced.py \
		tests/states/keyed/test_history.py -s $(PYTEST_ARGS)

FAULTS := 50
kills: check-java $(STAMP) $(CLASSES)
	@TRIDENT_KILLS=all $(BIN)/python -m pytest tests/spouts/test_stream_spout.py tests/messages/test_reliability_faults.py \
		tests/messages/test_tracked_streams.py tests/running/test_interrupted_script.py tests/running/test_stopping.py tests/states/outside/test_kafka_state.py \
		tests/states/outside/test_kafka_wire.py tests/states/outside/test_kafka_topology.py tests/states/outside/test_http_state.py \
		tests/states/outside/test_http_topology.py -s $(PYTEST_ARGS)
	@$(BIN)/python -m tests.chaos kills --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

# The store that sweep, races and failover run on: disk, s3 or hdfs.
STORE := disk
sweep: check-java $(STAMP) $(CLASSES)
	@TRIDENT_SWEEP=all TRIDENT_STORE=$(STORE) $(BIN)/python -m pytest $(PYTEST) tests/whole/test_sweep.py \
		$(if $(filter disk,$(STORE)),tests/states/keyed/test_host_copy.py tests/running/test_local_copies.py) $(PYTEST_ARGS)
	@$(if $(filter disk,$(STORE)),TRIDENT_ROLLBACK=all TRIDENT_FORK=12 TRIDENT_HISTORY=all TRIDENT_REPLAYS=all \
		$(BIN)/python -m pytest $(PYTEST) tests/time_travel/test_rollback.py tests/time_travel/test_fork.py \
		tests/time_travel/test_replay.py tests/running/test_recorded_past.py -k "kill or fails or failed" $(PYTEST_ARGS))

SEEDS := 20000
simulate: $(STAMP)
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS)
	@$(BIN)/python -m tests.simulator --seeds $$(($(SEEDS) / 4)) --rollbacks 2
	@TRIDENT_SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q tests/whole/test_simulator.py -k planted $(PYTEST_ARGS)

failover: check-java $(STAMP)
	@TRIDENT_FAILOVER=all TRIDENT_STORE=$(STORE) $(BIN)/python -m pytest tests/running/test_failover.py \
		$(if $(filter disk,$(STORE)),tests/running/test_warm_up.py) -s $(PYTEST_ARGS)

handover: check-java $(STAMP) $(CLASSES)
	@TRIDENT_HANDOVER=all $(BIN)/python -m pytest tests/commands/test_handover.py $(PYTEST_ARGS)

rollback: check-java $(STAMP) $(CLASSES)
	@TRIDENT_ROLLBACK=all $(BIN)/python -m pytest tests/time_travel/test_rollback.py $(PYTEST_ARGS)

repair: check-java $(STAMP) $(CLASSES)
	@TRIDENT_REPAIR=all $(BIN)/python -m pytest tests/repair/test_repair_plan.py tests/repair/test_contradictions.py $(PYTEST_ARGS)

storage: check-java $(STAMP) $(CLASSES)
	@TRIDENT_STORAGE=all $(BIN)/python -m pytest tests/whole/test_storage_faults.py tests/whole/test_memory_faults.py \
		tests/running/test_embedded_keeper.py $(PYTEST_ARGS)

migrate: N := 8000000
migrate: check-java $(STAMP) $(CLASSES)
	@TRIDENT_MIGRATE=$(N) $(BIN)/python -m pytest tests/whole/test_migrated_jobs.py \
		tests/commands/test_migrate.py -s $(PYTEST_ARGS)

fork: TXIDS := 100
fork: check-java $(STAMP) $(CLASSES)
	@TRIDENT_FORK=$(TXIDS) $(BIN)/python -m pytest tests/time_travel/test_fork.py $(PYTEST_ARGS)

stores: check-java $(STAMP) $(CLASSES)
	@TRIDENT_STORES=all $(BIN)/python -m pytest tests/states/core/test_stores.py tests/states/core/test_hdfs_answers.py tests/states/core/test_store_faults.py \
		tests/states/delta/test_process_races.py tests/whole/test_store_warehouses.py tests/whole/test_store_messages.py tests/whole/test_round_trips.py \
		$(PYTEST_ARGS)

cluster: check-java $(STAMP) $(CLASSES)
	@TRIDENT_CLUSTER=all $(BIN)/python -m pytest tests/cluster tests/spark/test_cluster.py tests/whole/test_wheel.py \
		tests/running/test_kept_plans.py $(PYTEST_ARGS)

replays: check-java $(STAMP) $(CLASSES)
	@TRIDENT_REPLAYS=all $(BIN)/python -m pytest tests/time_travel/test_replay.py tests/time_travel/test_example_replays.py \
		-s $(PYTEST_ARGS)

planted: check-java $(STAMP) $(CLASSES)
	@TRIDENT_PLANTED=all $(BIN)/python -m pytest $(PYTEST) tests/whole/test_planted_bugs.py $(PYTEST_ARGS)

MINUTES := 60
soak: check-java $(STAMP)
	@$(BIN)/python -m tests.chaos soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

ROUNDS := 200
races: check-java $(STAMP) $(CLASSES)
	@TRIDENT_RACE_ROUNDS=$(ROUNDS) TRIDENT_STORE=$(STORE) $(BIN)/python -m pytest -s tests/states/delta/test_process_races.py \
		$(if $(filter disk,$(STORE)),tests/states/delta/test_kernel_races.py tests/states/delta/test_log_commit.py \
		tests/states/delta/test_kernel.py) -k "race or wins or optimize or renames" $(PYTEST_ARGS)

types: check-java $(STAMP) $(CLASSES)
	@TRIDENT_TYPES=all $(BIN)/python -m pytest $(PYTEST) tests/states/keyed/test_last_value.py tests/states/core/test_value_types.py \
		tests/states/keyed/test_same_keys.py $(PYTEST_ARGS)

views: check-java $(STAMP) $(CLASSES)
	@TRIDENT_VIEWS_SECS=600 $(BIN)/python -m pytest -s tests/time_travel/test_views_under_kills.py $(PYTEST_ARGS)

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@TRIDENT_SITE=build/site $(BIN)/python -m pytest -q tests/whole/test_site.py $(PYTEST_ARGS)
	@echo "== docs: build/site/index.html"

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

jar: $(STAMP)
	@$(BIN)/python -m tests.jvm.make_jar

rooms: $(STAMP)
	@$(BIN)/python -m tests.pages.rooms

demo: check-java $(STAMP)
	@$(BIN)/python examples/demo.py

bench: check-java $(STAMP)
	@TRIDENT_BENCH=all $(BIN)/python -m pytest -q tests/whole/test_benchmarks.py $(PYTEST_ARGS)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

venv: $(STAMP)

# Spark's classes as the JVMs of the tests map them: without it the tests are the same and take longer.
$(CLASSES): $(STAMP)
	@rm -f $@
	@$(BIN)/python -m tests.jvm.class_archive $@ || echo "make: no archive of Spark's classes; going on without it" >&2

$(STAMP): pyproject.toml
	@$(MAKE) --no-print-directory check-python
	@echo "== $(VENV): made with $$($(PYTHON) --version), packages from pyproject.toml (some minutes the first time)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo; \
		echo "make: $(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; \
		exit 1; } >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check]'
	@touch $@

check-python:
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "make: Python 3.10 or later is needed."; \
		echo "  found:  $$(command -v $(or $(PYTHON),python3) >/dev/null && $(or $(PYTHON),python3) --version 2>&1 || echo none)"; \
		echo "  do:     install one, then: make PYTHON=/path/to/python3"; exit 1; } >&2

check-java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found="$$("$$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)"; \
	major="$${found%%[.-]*}"; test "$${major:-0}" -ge 17 2>/dev/null || { \
		echo "make: Java 17 or later is needed, for Spark."; \
		echo "  found:  $$java$${found:+, version $$found}$$(test -n "$$found" || echo ' (none that runs)')"; \
		echo "  do:     on Debian or Ubuntu: apt-get install openjdk-17-jre-headless (or openjdk-21-…);"; \
		echo "          elsewhere install a JDK and set JAVA_HOME to it"; exit 1; } >&2

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
