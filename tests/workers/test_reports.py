"""A worker's report within an exception's text, and the chain of causes that it is searched in."""

from __future__ import annotations

import re

from trident.coordinators.errors import FailedException, SourceError, UserFunctionError
from trident.coordinators.tracebacks import causes, search_causes, text_of
from trident.spouts.files.reading import source_failure
from trident.spouts.files.tasks import SourceFailure
from trident.udf.signatures import translate_failure
from trident.workers.failures import ERROR, FAILED, SOURCE, find_report, marked

REPORT = {"kind": ERROR, "operation": "map", "location": "a.py:1", "error": "no <<\nä", "place": "for the row {}"}


class Mute(Exception):
    """As an error of the JVM when the JVM is gone."""

    def __str__(self) -> str:
        raise OSError("the JVM is gone")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_causes_come_once_each_and_a_circle_ends():
    inner, outer = ValueError("inner"), KeyError("outer")
    caused(outer, inner)
    inner.__context__ = outer
    assert list(causes(outer)) == [outer, inner] and list(causes(None)) == []
    try:
        try:
            raise OSError("first")
        except OSError:
            raise TypeError("second")  # noqa: B904 — the context alone is looked at
    except TypeError as error:
        assert [type(one) for one in causes(error)] == [TypeError, OSError]


def test_a_text_that_cannot_be_had_is_passed_over():
    error = caused(Mute(), ValueError("number 12"))
    assert text_of(error) == ""
    found = search_causes(error, re.compile(r"\d+"))
    assert found is not None and found[0] == "12"
    assert search_causes(error, re.compile("14")) is None


def test_a_report_is_found_by_its_kind_in_any_cause_and_though_lines_were_broken():
    text = marked(REPORT)
    broken = text[:40] + "\n" + text[40:]
    assert find_report(ValueError(f"Spark says: {broken} and more")) == REPORT
    source = {"kind": SOURCE, "message": "m"}
    error = caused(caused(Mute(), RuntimeError(marked(source))), ValueError(text))
    assert find_report(caused(RuntimeError(marked(source)), ValueError(text))) == REPORT
    assert find_report(error) == REPORT and find_report(ValueError(text), SOURCE) is None
    for cut_off in (text[:-10] + ">>", text[:-2], "<<trident-failure:bnVsbA==>>", "<<trident-failure:>>"):
        assert find_report(ValueError(cut_off)) is None, cut_off


def test_each_kind_becomes_its_own_error():
    failed = translate_failure(ValueError(marked(REPORT | {"kind": FAILED})), "5:0")
    assert type(failed) is FailedException and str(failed) == "no <<\nä (raised by map at a.py:1, attempt 5:0)"
    error = translate_failure(ValueError(marked(REPORT | {"frames": "the frames"})), "5:0")
    assert isinstance(error, UserFunctionError) and error.fingerprint and "the frames" in str(error.__cause__)
    once = translate_failure(ValueError(marked(REPORT | {"may_pass": True})), "5:0")
    assert isinstance(once, UserFunctionError) and once.fingerprint is None
    of_source = ValueError(f"a job failed: {SourceFailure('gone', found='x', action='y')}")
    assert translate_failure(of_source, "5:0") is of_source and source_failure(ValueError(marked(REPORT))) is None
    found = source_failure(of_source)
    assert isinstance(found, SourceError) and (found.found, found.expected, found.action) == ("x", None, "y")
    assert found.fingerprint is None
    of_data = source_failure(ValueError(str(SourceFailure("not a row", found="x", repeats=True))))
    assert of_data is not None and of_data.fingerprint == str(of_data)
    known = SourceError("known")
    assert source_failure(caused(RuntimeError(), known)) is known
