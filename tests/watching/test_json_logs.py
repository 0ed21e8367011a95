"""Log records as JSON: one line each, whatever they hold."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from pyspark.logger import PySparkLogger

from trident import JsonFormatter
from trident.coordinators.errors import UserFunctionError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.threads import facts, facts_of, working_on
from trident.udf.signatures import UsersTraceback
from trident.watching.json_logs import JsonHandler


def formatted(message: object, *args: Any, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("trident.query", logging.WARNING, "f.py", 1, message, args, exc_info)
    record.__dict__.update(extra)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_record_has_time_level_logger_and_message_and_nothing_that_is_not_known() -> None:
    line = formatted("two %s\nlines of %d", "Größen", 7)
    assert list(line) == ["ts", "level", "logger", "message"]
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "trident.query", "two Größen\nlines of 7")
    assert datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).tzinfo is not None


def test_the_work_of_the_thread_is_named_while_it_lasts() -> None:
    attempt = TransactionAttempt(7, 2)
    inner = working_on(lambda: formatted("x"), **facts_of(attempt))
    line = working_on(inner, topology="t", group="g")()
    assert (line["topology"], line["group"], line["txid"], line["attempt"]) == ("t", "g", 7, 2)
    assert facts() == {} and "txid" not in formatted("x")

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        working_on(fails, topology="t")()
    assert facts() == {}


def test_what_the_record_itself_says_wins() -> None:
    line = working_on(lambda: formatted("x", topology="mine", progress={"rows": 3}), topology="t")()
    assert line["topology"] == "mine" and line["progress"] == {"rows": 3}


def test_an_error_is_told_with_its_traceback_and_the_users_lines_first() -> None:
    try:
        raise KeyError("lost")
    except KeyError as raised:
        line = formatted("it failed", error=raised)
    assert line["error"] == "KeyError: 'lost'" and "test_json_logs.py" in line["traceback"]
    error = UserFunctionError("each(split) failed", operation="each(split)", location="job.py:6")
    error.__cause__ = UsersTraceback('  File "job.py", line 6, in split')
    line = formatted("attempt %s failed: %s", "1:0", error)
    assert line["error"] == "UserFunctionError: each(split) failed"
    assert line["traceback"].startswith("Your function (most recent call last):")


class Bad:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_no_record_raises(capsys: pytest.CaptureFixture[str]) -> None:
    assert formatted("%d rows", "three")["message"] == "%d rows"
    assert formatted("%s", Bad())["message"] == "%s"
    assert formatted("x", progress=Bad())["progress"] == "a value of type Bad"
    long = ValueError("x" * 1_000_000)
    assert len(formatted("x", error=long)["traceback"]) < 30_000
    assert len(json.dumps(formatted("%s of it", "y" * 1_000_000, error=long))) < 70_000
    circular: dict[object, object] = {}
    circular["itself"] = circular
    assert "itself" in formatted("x", progress=circular)["progress"]
    assert formatted("x", progress={(1, 2): 3})["progress"] == "{(1, 2): 3}"
    assert formatted("x", progress=math.nan)["progress"] == "nan", "JSON has no NaN"
    assert capsys.readouterr().err == ""


def test_a_record_is_one_line_on_standard_error_also_of_pysparks_logger(capsys: pytest.CaptureFixture[str]) -> None:
    handler = JsonHandler()
    own, sparks = logging.getLogger("tests.json"), PySparkLogger.getLogger("tests.json.spark")
    own.addHandler(handler)
    try:
        own.warning("mine")
        sparks.warning("Spark's", user="u")
    finally:
        own.removeHandler(handler)
    mine, its = (json.loads(line) for line in capsys.readouterr().err.splitlines() if "tests.json" in line)
    assert mine["message"] == "mine" and its["msg"] == "Spark's"


@pytest.fixture
def quiet_logger_of_pyspark() -> Iterator[None]:
    logger = PySparkLogger.getLogger("tests.json.quiet")
    logger.propagate = False  # as PySpark's own are, once they have logged an error
    yield
    logger.propagate = True


@pytest.mark.usefixtures("quiet_logger_of_pyspark")
def test_what_a_test_captures_is_text_beside_pysparks_loggers(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("tests.json").warning("mine")
    assert caplog.text.strip().endswith("mine")
