"""What is stored is read back exactly; anything else is an error that names the znode."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.errors import ConfigError, CorruptZnode
from trident.coordinators.records import (
    Decision,
    GroupRecord,
    Holder,
    LeaderRecord,
    Marker,
    TableMark,
    decode,
    decode_txid,
    decode_value,
    encode,
    encode_value,
)

RECORD = GroupRecord(
    "inc", 3, {3: 1, 4: 0}, {3: 0, 4: 1}, Marker(2, 0, "d2"), Marker(1, 5, "d1"), {"table": TableMark(7, 1, 5, "d1")}
)
DECISION = Decision(3, 1, "_trident/wc/lines/manifests/3-1.json", 120, "ab" * 32)
SAMPLES = [RECORD, GroupRecord("inc", 1), DECISION, LeaderRecord(1, "n"), Holder("h", "b", 12, "345", "t")]

small = st.integers(0, 2**40)


@st.composite
def group_records(draw):
    current = draw(st.integers(1, 10**9))
    txids = draw(st.lists(st.integers(current, current + 5), unique=True))
    last = published = None
    if current > 1:
        last = Marker(current - 1, draw(small), draw(st.text()))
        published = draw(st.sampled_from([None, last, Marker(draw(st.integers(1, current - 1)), 0, "")]))
    marks = st.builds(TableMark, small, small, small, st.text())
    return GroupRecord(
        draw(st.text(min_size=1)),
        current,
        {txid: draw(small) for txid in txids},
        {txid: draw(st.none() | small) for txid in txids},
        last,
        published,
        draw(st.dictionaries(st.text(min_size=1), marks, max_size=3)),
    )


@given(group_records())
def test_a_group_record_is_read_back_as_it_was_written(record):
    assert decode("/z", encode(record), GroupRecord) == record


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_every_record_is_read_back_and_says_its_schema(record):
    data = encode(record)
    assert json.loads(data)["schema"] == 1
    assert decode("/z", data, type(record)) == record


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_every_missing_and_every_unknown_key_is_corrupt(record):
    fields = json.loads(encode(record))
    for key in fields:
        damaged = {name: value for name, value in fields.items() if name != key}
        with pytest.raises(CorruptZnode, match=key if key != "schema" else "schema. is None"):
            decode("/z", json.dumps(damaged).encode(), type(record))
    with pytest.raises(CorruptZnode, match="surprise"):
        decode("/z", json.dumps({**fields, "surprise": 1}).encode(), type(record))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"current_txid":3', '"current_txid":-3'),
        ('"current_txid":3', '"current_txid":0'),
        ('"current_txid":3', '"current_txid":4'),
        ('"attempts":{"3":1', '"attempts":{"03":1'),
        ('"attempts":{"3":1', '"attempts":{"-3":1'),
        ('"attempts":{"3":1', '"attempts":{"3":null'),
        ('"attempts":{"3":1', '"attempts":{"3":-1'),
        ('"attempts":{"3":1', '"attempts":{"2":1'),
        ('"attempts":{"3":1,', '"attempts":{'),
        ('"txid":2', '"txid":-2'),
        ('"version":7', '"version":-7'),
        ('"incarnation":"inc"', '"incarnation":""'),
        ('"tables":{', '"tables":{"":null,'),
    ],
)
def test_a_group_record_that_contradicts_itself_is_corrupt(before, after):
    text = encode(RECORD).decode()
    assert before in text
    with pytest.raises(CorruptZnode):
        decode("/z", text.replace(before, after, 1).encode(), GroupRecord)


@pytest.mark.parametrize("manifest", ["/etc/passwd", "a/../../b", ".."])
def test_a_manifest_outside_of_the_warehouse_is_corrupt(manifest):
    text = encode(DECISION).decode().replace(DECISION.manifest, manifest)
    with pytest.raises(CorruptZnode, match="inside the warehouse"):
        decode("/z", text.encode(), Decision)


def test_a_record_that_contradicts_itself_is_never_written():
    with pytest.raises(ValueError, match="`last` must be transaction 3"):
        encode(replace(RECORD, current_txid=4))
    with pytest.raises(ValueError, match="attempts"):
        encode(replace(RECORD, attempts={3: "1", 4: 0}))


def test_a_read_only_view_of_a_mapping_can_be_written():
    viewed = replace(RECORD, attempts=MappingProxyType(dict(RECORD.attempts)))
    assert decode("/z", encode(viewed), GroupRecord) == RECORD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_a_json_value_is_read_back_as_it_was_written(value):
    assert decode_value("/z", encode_value(value, "spout s")) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), b"bytes", {("a",): 1}])
def test_what_is_not_json_is_refused_with_its_owner(value):
    with pytest.raises(ConfigError, match="spout lines"):
        encode_value(value, "spout lines")


@pytest.mark.parametrize("data", [b"", b"1", b'{"value":1}', b'{"schema":1}', b'{"schema":1,"value":1,"x":1}'])
def test_a_damaged_value_is_corrupt(data):
    with pytest.raises(CorruptZnode, match="/z"):
        decode_value("/z", data)


@pytest.mark.parametrize("name", ["0", "-1", "01", "1.0", "x", "١", "1e3"])
def test_a_name_that_is_no_txid_is_corrupt(name):
    with pytest.raises(CorruptZnode, match="a txid"):
        decode_txid("/z", name)
    assert decode_txid("/z", "10") == 10
