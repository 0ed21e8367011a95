"""The command line: ``trident run``, ``status``, ``plan``, ``compact``, ``skip``, ``reset``, ``repair`` and others.

Its exit codes are in :mod:`trident.commands.exit_codes`. An error is
its message alone, behind the lines of your own function that raised;
``--verbose`` adds the whole traceback, and what Spark says.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trident.commands.exit_codes import (
    EXIT_BAD_INPUT,
    EXIT_HALT,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOT_RUNNING,
    EXIT_OF_CONDITION,
    exit_code,
)
from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, TopologyError, TridentError
from trident.coordinators.tracebacks import causes
from trident.running import process_defaults
from trident.running.process_defaults import sigterm_ends
from trident.running.progress import make_display
from trident.settings import VARIABLE as SETTINGS_FILE
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.core.storage import storage_problem_of
from trident.watching import json_logs

# Imports within functions: time. Each command loads what it needs; `trident status` needs neither PySpark nor kazoo.


log = logging.getLogger("trident.cli")
# The other folders in <warehouse>/_trident, beside the topologies'.
_NOT_TOPOLOGIES = ("states", "zookeeper")


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--set`` and ``--verbose``, and turns errors into messages and exit codes."""

    @click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting; can be repeated.")
    @click.option("--settings", "settings_file", metavar="FILE", help="A TOML file of settings, as TRIDENT_SETTINGS.")
    @click.option("--verbose", is_flag=True, help="Show the traceback of an error, and Spark's messages.")
    @functools.wraps(function)
    def command(*, settings: tuple[str, ...], settings_file: str | None, verbose: bool, **arguments: Any) -> None:
        if verbose:
            process_defaults.install(verbose=True)
        if settings_file is not None:
            os.environ[SETTINGS_FILE] = settings_file  # of every TridentConfig, the user's file's too
        try:
            if arguments.get("log_format") == "json":
                json_logs.install()
            # The short forms are settings like others; said last, they win.
            short = {key: arguments.pop(key, None) for key in _SHORT}
            given = [f"{key}={value}" for key, value in short.items() if value is not None]
            function(settings=(*settings, *given), **arguments)
        except (click.exceptions.Exit, click.ClickException):
            raise
        except click.Abort:  # Ctrl-C at a question
            sys.exit(EXIT_INTERRUPTED)
        except (Exception, KeyboardInterrupt) as raised:
            error: BaseException = storage_problem_of(raised) or raised
            code = exit_code(error)
            if json_logs.is_installed():
                log.error("%s", str(error) or "interrupted", exc_info=error)
            else:
                _print_error(error, code, raised if verbose else None)
            sys.exit(code)

    return command


def _print_error(error: BaseException, code: int, traced: BaseException | None) -> None:
    """Prints an error; with the whole traceback of ``traced``, where that is wanted."""
    if traced is not None:
        traceback.print_exception(traced)
    if code == EXIT_INTERNAL and not isinstance(error, TridentError):
        click.echo(f"trident: an error of the framework: {type(error).__name__}: {error}", err=True)
        click.echo("Run it again with --verbose for the traceback.", err=True)
        return
    frames = _users_frames(error) if traced is None else None
    if frames:
        click.echo(frames, err=True)
    click.echo(f"trident: {str(error) or 'interrupted'}", err=True)


def _users_frames(error: BaseException) -> str | None:
    """The user's own part of the traceback, where a function of the user's is behind the error."""
    # Told by its name, not imported: the command line is to start at once.
    return next((str(one).lstrip() for one in causes(error) if type(one).__name__ == "UsersTraceback"), None)


_SHORT = ("warehouse", "zookeeper", "log_format")
_warehouse_option = click.option("--warehouse", metavar="FOLDER", help="The warehouse folder, as --set warehouse=….")
_zookeeper_option = click.option("--zookeeper", metavar="HOSTS", help="Where ZooKeeper is, as --set zookeeper=….")
_force_option = click.option("--force", is_flag=True, help="Skip the check that this is the topology's own ZooKeeper.")


def _name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Checks a topology's name before it becomes part of a path, perhaps of one to be deleted."""
    try:
        if name is not None:
            check_name("topology", name)
    except TopologyError as error:
        raise click.BadParameter(str(error)) from None
    if name in _NOT_TOPOLOGIES:
        raise click.BadParameter(f"{name} is a folder of the framework, not a topology")
    return name


_Function = Callable[..., None]


def _of_topology(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """A command that takes NAME, ``--warehouse`` and these options."""

    def decorated(function: _Function) -> _Function:
        command = _command(function)
        for option in reversed(options):
            command = option(command)
        command = _warehouse_option(command)
        return click.argument("name", callback=_name)(command)

    return decorated


def _config(settings: tuple[str, ...], base: TridentConfig | None = None) -> TridentConfig:
    return (base or TridentConfig()).with_overrides(settings)


def given_spark_settings(config: TridentConfig) -> dict[str, str]:
    """The Spark settings that were asked for, without the defaults: those the file's own config may say."""
    from trident.spark.session import spark_settings

    settings = spark_settings(config)
    if config.origin("spark_master") == "default" and "spark.master" not in dict(config.spark_conf):
        del settings["spark.master"]
    return settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trident-spark")
def main() -> None:
    """Exactly-once micro-batches on Spark: run and manage topologies.

    FILE is a Python file that defines a topology, NAME the topology's name, TXID the number of a transaction.
    `trident COMMAND --help` shows the options of a command.
    """


@main.command("new", short_help="Make the folder NAME with a small project.")
@click.argument("name")
@_command
def new(name: str, settings: tuple[str, ...]) -> None:
    """Make the folder NAME with a small project: a topology, its test, a systemd unit, a compose file."""
    from trident.commands.new import new_project

    for path in new_project(name, Path.cwd()):
        click.echo(path.relative_to(Path.cwd()))
    click.echo(f"Begin with: cd {name} && trident plan topology.py")


@main.command(short_help="Run the topology in FILE until it is stopped.")
@click.argument("file", metavar="FILE[:NAME]")
@_warehouse_option
@_zookeeper_option
@click.option("--conf", "conf", multiple=True, metavar="spark.KEY=VALUE", help="A Spark setting; can be repeated.")
@click.option(
    "--log-format",
    type=click.Choice(["plain", "json"]),
    help="The log's format, as --set log_format=…; json: for a collector.",
)
@_command
def run(file: str, conf: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Run the topology that FILE defines, until it is stopped or fails.

    A first Ctrl-C or SIGTERM finishes what is decided and stops; a second aborts. During the start, the first aborts.
    """
    given = _config(settings).with_spark_conf(conf)  # what is wrong here is told before the file is run
    if given.log_format == "json":
        json_logs.install()
    with sigterm_ends(f"the start of {file}"):
        display = make_display(given.progress, log_format=given.log_format)
        if display is not None:
            display.event(f"reading {file}")
        log.info("reading %s", file)
        from trident.commands.user_file import load_topology
        from trident.spark.session import set_default_settings

        # An expression in the file may make the session, whose JVM is fixed then.
        set_default_settings(given_spark_settings(given))
        topology, file_config = load_topology(file)
        config = _config(settings, file_config).with_spark_conf(conf)
        topology.run(config=config)


@main.command(short_help="Print or draw what FILE would do.")
@click.argument("file", metavar="FILE[:NAME]")
@click.option("--svg", metavar="OUT.svg", help="Draw it into this file; needs Graphviz.")
@click.option("--dot", is_flag=True, help="Print it in Graphviz's language.")
@_command
def plan(file: str, svg: str | None, dot: bool, settings: tuple[str, ...]) -> None:
    """Print what the topology in FILE would do, or draw it; nothing is started."""
    from trident.commands.user_file import load_topology

    _config(settings)
    topology, _ = load_topology(file)
    if svg or dot:
        from trident.planning.explain import to_dot, write_svg

        if dot:
            click.echo(to_dot(topology.graph))
        if svg:
            write_svg(topology.graph, svg)
            click.echo(f"drawn: {svg}", err=dot)
        return
    text = topology.explain()
    if text is not None:
        click.echo(text)


@main.command(short_help="Show the status of topologies.")
@click.argument("name", required=False, callback=_name)
@click.option("--json", "as_json", is_flag=True, help="The status as JSON, one object a line.")
@_warehouse_option
@_command
def status(name: str | None, as_json: bool, settings: tuple[str, ...]) -> None:
    """Print the status of topology NAME, or of all in the warehouse, and how old it is.

    Exit code 0 when it runs or starts (as far as this host can see), 1 when it gave up or failed, 3 when it is halted,
    5 when it was stopped or its process is gone; with several topologies, the most serious one. 2 when it is not known.
    """
    from trident.running.status import condition, format_status, read_status, topologies_with_status

    warehouse = _config(settings).warehouse_place()
    names = [name] if name else topologies_with_status(warehouse)
    if not names:
        raise ConfigError(
            f"the warehouse {warehouse} has no topology",
            action="start one, or name its warehouse with --set warehouse=…",
        )
    conditions = set()
    for one in names:
        found = read_status(warehouse, one)
        what = condition(found)
        conditions.add(what)
        click.echo(json.dumps({**found.to_json(), "condition": what}) if as_json else format_status(found))
    for bad, code in EXIT_OF_CONDITION.items():
        if bad in conditions:
            sys.exit(code)


@main.command(short_help="Print alert rules and a dashboard for metrics.")
@click.option("--alerts", is_flag=True, help="Alert rules, for Prometheus' rule_files.")
@click.option("--dashboard", is_flag=True, help="A dashboard, for Grafana to import.")
@_command
def metrics(alerts: bool, dashboard: bool, settings: tuple[str, ...]) -> None:
    """Print a file for monitoring with Prometheus: alert rules (YAML), or a Grafana dashboard (JSON).

    A topology started with a port (--set http=3774) serves its metrics at /metrics.
    """
    from trident.watching.metric_table import ALERTS, DASHBOARD, monitoring_file

    if alerts == dashboard:
        raise ConfigError("one file is printed at a time", expected="--alerts, or --dashboard")
    click.echo(monitoring_file(ALERTS if alerts else DASHBOARD), nl=False)


@main.command(short_help="Open the live page for NAME's warehouse.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to listen on; a free one by default.")
@click.option("--open", "open_", is_flag=True, help="Open it in the browser.")
@_of_topology()
def ui(name: str, port: int, open_: bool, settings: tuple[str, ...]) -> None:
    """Show topology NAME in a browser of this machine, running or not; until Ctrl-C.

    It reads only the warehouse. A topology that runs with the setting `http` serves its own page at that address.
    Every user of this machine can read the page, unless the setting `http_token` is set.
    """
    import threading

    from trident.commands.ui import serve

    def print_url(url: str) -> None:
        click.echo(url)
        if open_:
            click.launch(url)

    try:
        serve(name, _config(settings), port, print_url, threading.Event())
    except KeyboardInterrupt:
        click.echo("")


@main.command(short_help="Show the past transactions of NAME.")
@click.option("--txid", type=click.IntRange(min=1), help="Only this one, in full.")
@click.option("--group", help="Only of this batch group.")
@click.option(
    "--last", type=click.IntRange(min=0), default=20, show_default=True, help="This many; 0: all that are kept."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, one transaction a line.")
@_of_topology()
def history(name: str, settings: tuple[str, ...], **which: Any) -> None:
    """Print the past transactions of topology NAME, running or not: their times, sources and changes.

    Any Delta reader can query them in the warehouse's table NAME__GROUP__transactions, too.
    """
    from trident.commands import history as command

    for line in command.history(name, config=_config(settings), **which):
        click.echo(line)


@main.command(short_help="Bring the plain tables of NAME up to date.")
@_of_topology(_zookeeper_option, _force_option)
def compact(name: str, force: bool, settings: tuple[str, ...]) -> None:
    """Bring the plain tables of topology NAME up to its last transaction."""
    from trident.commands import admin

    _say(admin.compact(name, config=_config(settings), force=force))


@main.command(short_help="Commit transaction TXID of NAME as empty.")
@click.option("--txid", type=click.IntRange(min=1), required=True, help="The transaction that cannot be processed.")
@click.option("--group", help="Its batch group, when the topology has several.")
@_of_topology(_zookeeper_option, _force_option)
def skip(name: str, txid: int, settings: tuple[str, ...], **options: Any) -> None:
    """Commit transaction TXID of topology NAME as empty; its metadata goes to the dead-letter table."""
    from trident.commands import admin

    _say(admin.skip(name, txid, config=_config(settings), **options))


@main.command(short_help="Start NAME over at txid 1.")
@click.option("--drop-tables", is_flag=True, help="Delete the topology's tables too.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_of_topology(_zookeeper_option, _force_option)
def reset(name: str, drop_tables: bool, yes: bool, force: bool, settings: tuple[str, ...]) -> None:
    """Delete the record of the transactions of topology NAME: its next start begins at txid 1.

    If it is interrupted, run it again: it continues.
    """
    config = _config(settings)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("reset cannot be undone and there is no terminal to ask at", action="give --yes")
        what = "its transactions and its tables" if drop_tables else "its transactions"
        if not click.confirm(f"Delete {what}: {name}, in {config.warehouse}. Continue?"):
            click.echo("Nothing is changed.")
            return
    from trident.commands import admin

    _say(admin.reset(name, drop_tables=drop_tables, config=config, force=force))


@main.command(short_help="Continue where a Structured Streaming query has stopped.")
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--topology", "file", metavar="FILE[:NAME]", required=True, help="The topology that continues.")
@click.option("--again", is_flag=True, help="Begin with the batch in doubt: it is read again.")
@click.option("--skip", is_flag=True, help="Begin after the batch in doubt: the target has it.")
@click.option(
    "--target", "targets", multiple=True, metavar="TABLE", help="A Delta table that shows whether it has the batch."
)
@click.option("--app-id", metavar="ID", help="The txnAppId of the MERGEs into the targets.")
@click.option("--without-state", is_flag=True, help="Continue without the query's own state in Spark.")
@_warehouse_option
@_zookeeper_option
@_force_option
@_command
def migrate(
    checkpoint: str, file: str, without_state: bool, force: bool, settings: tuple[str, ...], **doubt: Any
) -> None:
    """Start the topology in FILE after the last batch of the query with this CHECKPOINT.

    Stop the query first. A batch that Spark has planned and not committed may be in the target, or not: --target and
    --app-id check that, --again and --skip decide it.
    """
    from trident.commands.migrate import InDoubt
    from trident.commands.migrate import migrate as run_migrate
    from trident.commands.user_file import load_topology

    in_doubt = InDoubt(**doubt)
    given = _config(settings)
    topology, file_config = load_topology(file)
    config = _config(settings, file_config) if file_config is not None else given
    _say(run_migrate(checkpoint, topology, config, in_doubt, without_state=without_state, force=force))


_source_option = click.option("--source", "warehouse", metavar="FOLDER", help="NAME's warehouse, as --set warehouse=….")


@main.command("fork", short_help="Make a new topology as of a transaction of NAME.")
@click.argument("name", callback=_name)
@click.option("--at", multiple=True, required=True, metavar="TXID", help="Its last transaction; or GROUP=TXID of each.")
@click.option("--as", "as_name", required=True, metavar="NAME2", callback=_name, help="The name of the fork.")
@click.option("--warehouse", "target", required=True, metavar="FOLDER", help="The fork's own, new or empty.")
@click.option("--until-kept", is_flag=True, help="Begin no transaction after the last batch of NAME.")
@click.option("--copy", "may_copy", is_flag=True, help="Copy the data where hard links are not possible.")
@click.option("--accept-acknowledging", is_flag=True, help="Allow spouts that can change their sources.")
@_source_option
@_zookeeper_option
@_command
def fork_(name: str, settings: tuple[str, ...], **fork: Any) -> None:
    """Make NAME2, a topology as NAME was after transaction TXID, which then gets the same batches.

    NAME is only read, and may run. If it is interrupted, run it again: it continues.
    """
    from trident.commands.fork import fork_to

    _say(fork_to(name, config=_config(settings), **fork))


@main.command("diff", short_help="Show the first difference of NAME and its fork.")
@click.argument("name", callback=_name)
@click.argument("other", metavar="NAME2", callback=_name)
@click.option("--txid", "txids", metavar="N[..M]", help="Compare these transactions; default: all common ones.")
@click.option("--group", help="Their batch group, when they have several.")
@click.option("--json", "as_json", is_flag=True, help="The comparison as JSON.")
@click.option("--warehouse", "target", required=True, metavar="FOLDER", help="NAME2's warehouse.")
@_source_option
@_command
def diff_(name: str, other: str, settings: tuple[str, ...], **which: Any) -> None:
    """Compare NAME and NAME2 transaction by transaction: the first difference, its table, key and values.

    Exit code 1 when they differ, 6 when there is no transaction to compare.
    """
    from trident.commands.fork import diff_of

    text, code = diff_of(name, other, config=_config(settings), **which)
    click.echo(text)
    if code:
        sys.exit(code)


@main.command(short_help="Find contradictions in NAME, and repair them.")
@click.option("--undo-foreign", multiple=True, metavar="STATE", help="Undo changes of others to its tables.")
@click.option("--accept-foreign", multiple=True, metavar="STATE", help="Keep changes of others to its table.")
@click.option("--accept-unverified", multiple=True, metavar="STATE", help="Accept its table without inspection.")
@click.option("--adopt-tables", is_flag=True, help="ZooKeeper is newer: continue from the older tables.")
@click.option("--accept-loss", is_flag=True, help="With --adopt-tables: lose data that a source no longer has.")
@click.option("--abandon-decision", is_flag=True, help="Give up a decided transaction that no table has.")
@click.option("--accept-outside", multiple=True, metavar="STATE", help="Continue without what its store has lost.")
@click.option("--clamp", multiple=True, metavar="STATE", help="Use the type's limit for sums that overflow.")
@click.option("--apply", "apply_", is_flag=True, help="Make the changes; without it nothing is changed.")
@_of_topology(_zookeeper_option)
def repair(name: str, apply_: bool, settings: tuple[str, ...], **choices: Any) -> None:
    """Show where ZooKeeper and the tables of topology NAME contradict each other, and repair it with --apply.

    Exit code 3 while a contradiction is left.
    """
    from trident.repair.apply import repair as run_repair
    from trident.repair.apply import report, where_words
    from trident.repair.steps import Choices

    chosen: dict[str, Any] = {
        option: frozenset(one) if isinstance(one, tuple) else one for option, one in choices.items()
    }
    repaired = run_repair(name, Choices(**chosen), apply_, _config(settings))
    click.echo(report(repaired, where_words(settings), apply_))
    if repaired.left:
        sys.exit(EXIT_HALT)


@main.command(short_help="Roll NAME back to an earlier transaction.")
@click.option("--to", "txid", type=int, required=True, metavar="N", help="The last transaction that stays.")
@click.option("--group", metavar="GROUP", help="The batch group, when NAME has several.")
@click.option("--leave", multiple=True, metavar="STATE", help="Do not roll back this state outside of Delta.")
@click.option("--accept-loss", is_flag=True, help="Lose rows that sources no longer have.")
@click.option("--apply", "apply_", is_flag=True, help="Make the changes; without it nothing is changed.")
@_of_topology(_zookeeper_option)
def rollback(
    name: str,
    txid: int,
    group: str | None,
    leave: tuple[str, ...],
    accept_loss: bool,
    apply_: bool,
    settings: tuple[str, ...],
) -> None:
    """Roll all Delta tables of topology NAME, its current transaction and its positions back to transaction N.

    Nothing is deleted; attempts begin with new ids. If it is killed with --apply, run it again: it continues. Exit code
    2 when it is refused.
    """
    from trident.time_travel.rollback import report, roll_back
    from trident.time_travel.rollback_plan import Choices

    choices = Choices(frozenset(leave), accept_loss)
    done = roll_back(name, txid, group=group, choices=choices, apply=apply_, config=_config(settings))
    click.echo(report(name, done, apply_))
    if done.plan is not None and done.plan.refusals:
        sys.exit(EXIT_BAD_INPUT)


@main.command(short_help="Let a standby with new code take over NAME.")
@click.option("--to", metavar="HOST:PID", help="The standby; default: the one with other code than the leader.")
@click.option("--last", type=click.IntRange(min=1), default=5, help="Transactions of each group to rehearse: 5.")
@click.option("--accept-changes", is_flag=True, help="Hand over although the new code's rows differ.")
@click.option("--without-rehearsal", is_flag=True, help="Rehearse nothing: only check that the code fits.")
@click.option("--only-rehearse", is_flag=True, help="Compare, and do not hand over.")
@click.option("--stop-old", is_flag=True, help="End the old leader; by default it waits as a standby.")
@click.option(
    "--timeout",
    "timeout_secs",
    type=float,
    default=600.0,
    help="Seconds for the rehearsal or the check; again for the takeover.",
)
@_of_topology(_zookeeper_option)
def handover(name: str, settings: tuple[str, ...], **wish: Any) -> None:
    """Make a standby repeat the last transactions of topology NAME with its code, and lead if the rows are the same.

    Exit code 1 when they are not, or the code fails on them; 2 when it is refused; 6 when not everything could be
    compared. The leader then stays leader.
    """
    from trident.commands.handover import HandoverOptions, hand_over

    code = hand_over(name, HandoverOptions(**wish), _config(settings), click.echo)
    if code:
        sys.exit(code)


@main.command(short_help="Save one transaction of NAME to a folder, for tests.")
@click.option("--txid", type=click.IntRange(min=1), required=True, help="The transaction; it must be kept.")
@click.option("--code", required=True, metavar="FILE[:NAME]", help="The file that defines the topology.")
@click.option("--to", "folder", metavar="FOLDER", help="A new folder; default: NAME-TXID.")
@click.option("--group", help="Its batch group, when the topology has several.")
@click.option("--state-rows", type=click.IntRange(min=0), default=10_000, help="Of larger states only the keys read.")
@_of_topology()
def capture(name: str, settings: tuple[str, ...], **options: Any) -> None:
    """Save transaction TXID of topology NAME to a folder: its input, the states that it read, its committed rows.

    trident.testing.load_capture loads it in a test. The topology may run, and does not change.
    """
    from trident.commands.fork import capture_to

    _say(capture_to(name, config=_config(settings), **options))


@main.command(short_help="Check this machine, and a cluster's hosts.")
@click.option("--cluster", is_flag=True, help="Start an application on the Spark master, and check each host.")
@click.option("--conf", "conf", multiple=True, metavar="spark.KEY=VALUE", help="A Spark setting; can be repeated.")
@_warehouse_option
@_zookeeper_option
@_command
def doctor(cluster: bool, conf: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Check that this machine, and with --cluster each host of the cluster, has everything that a topology needs.

    It says how to get what is missing. It downloads Delta's jars if needed, and changes nothing else.
    Exit code 2 when something is missing.
    """
    from trident.commands.doctor import doctor as doctor_report

    report = doctor_report(_config(settings).with_spark_conf(conf), cluster)
    click.echo(report.text())
    if report.problems:
        sys.exit(EXIT_BAD_INPUT)


@main.group("dead-letters", short_help="List dead letters, or retry them.")
def dead_letters() -> None:
    """Messages and requests that were given up, and skipped transactions: list them, or retry messages."""


@dead_letters.command("list", short_help="Show the dead letters of NAME.")
@click.option("--json", "as_json", is_flag=True, help="In full, as JSON, one object a line.")
@_of_topology()
def list_letters(name: str, as_json: bool, settings: tuple[str, ...]) -> None:
    """Show the dead letters of topology NAME, the oldest first; then those of each HttpState."""
    from trident.commands.dead_letters import dead_letters, refused_by_servers

    found: list[Any] = [*dead_letters(name, _config(settings)), *refused_by_servers(name, _config(settings))]
    for letter in found:
        click.echo(json.dumps(dataclasses.asdict(letter), default=str) if as_json else letter.line())
    if not found and not as_json:
        click.echo(f"{name} has no dead letter")


@dead_letters.command("replay", short_help="Retry messages of NAME.")
@click.option("--stream", help="Only messages of this stream.")
@click.option("--message", "messages", multiple=True, metavar="ID", help="Only this id, as listed; can be repeated.")
@click.option("--again", is_flag=True, help="Also those that were replayed before.")
@_of_topology(_zookeeper_option, _force_option)
def replay_letters(name: str, settings: tuple[str, ...], **options: Any) -> None:
    """Retry messages of topology NAME, in the running topology or at its next start."""
    from trident.commands.dead_letters import replay

    _say(replay(name, _config(settings), **options))


@main.group(short_help="Start, stop or check the warehouse's server.")
def zookeeper() -> None:
    """The warehouse's embedded ZooKeeper server, which topologies start when they need it."""


def _server_folder(settings: tuple[str, ...]) -> Place:
    config = _config(settings)
    if config.zookeeper != "embedded":
        raise ConfigError(
            "the settings name a ZooKeeper of your own; there is no embedded server to look after",
            found=f"zookeeper={config.zookeeper} ({config.origin('zookeeper')})",
            expected="zookeeper=embedded",
        )
    from trident.running.zookeeper import server_folder  # Spark's modules take a while

    return server_folder(config.warehouse_place())


@zookeeper.command("start", short_help="Start the server unless it runs.")
@_warehouse_option
@_command
def start_server(settings: tuple[str, ...]) -> None:
    """Start the server unless it runs; it stops after ten idle minutes."""
    from trident.coordinators.embedded import EmbeddedZooKeeper

    click.echo(f"running at {EmbeddedZooKeeper.ensure(_server_folder(settings))}")


@zookeeper.command("stop", short_help="Stop the server.")
@_warehouse_option
@_command
def stop_server(settings: tuple[str, ...]) -> None:
    """Stop the server; topologies that use it lose their connection."""
    from trident.coordinators.embedded import EmbeddedZooKeeper

    click.echo("stopped" if EmbeddedZooKeeper.stop(_server_folder(settings)) else "it was not running")


@zookeeper.command("status", short_help="Show whether the server runs, and where.")
@_warehouse_option
@_command
def server_status(settings: tuple[str, ...]) -> None:
    """Show whether the server runs, and where. Exit code 5 when it does not run."""
    from trident.coordinators.embedded import EmbeddedZooKeeper

    folder = _server_folder(settings)
    endpoint = EmbeddedZooKeeper.status(folder)
    if endpoint is None:
        click.echo(f"not running ({folder})")
        sys.exit(EXIT_NOT_RUNNING)
    else:
        click.echo(f"running at 127.0.0.1:{endpoint.port}, pid {endpoint.server_pid} ({folder})")


def _say(text: object) -> None:
    if isinstance(text, str) and text:
        click.echo(text)


if __name__ == "__main__":
    main()
