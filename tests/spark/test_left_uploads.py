"""Uploads that a killed process has left behind: aborted at the next start, those of others and young ones kept.

It needs a Spark session for S3: `test_a_sample_of_the_sweep_in_a_store` runs it in a process that has one.
"""

from __future__ import annotations

import uuid
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from tests.servers import store_servers
from trident.spark.stores import drop_left_uploads
from trident.states.core import storage
from trident.states.core.place import Place

of_a_store = pytest.mark.skipif(store_servers.chosen() != "s3", reason="runs with TRIDENT_STORE=s3")
# The server of the tests says of each upload that it was begun in 2010.
YEARS = 365 * 24 * 3600.0


@pytest.fixture
def s3() -> Any:
    given = storage.settings_of("s3a://lake")
    return boto3.client(
        "s3",
        endpoint_url=given["fs.s3a.endpoint"],
        region_name=given["fs.s3a.endpoint.region"],
        aws_access_key_id=given["fs.s3a.access.key"],
        aws_secret_access_key=given["fs.s3a.secret.key"],
    )


@of_a_store
def test_uploads_that_nothing_ends_are_aborted_below_the_warehouse_alone(spark: SparkSession, s3: Any) -> None:
    name = uuid.uuid4().hex
    warehouse = Place(f"s3a://lake/{name}/w")
    for key in ("w/counts/data/1.parquet", "w/x", "w2/x", "other"):
        begun = s3.create_multipart_upload(Bucket="lake", Key=f"{name}/{key}")
        s3.upload_part(Bucket="lake", Key=f"{name}/{key}", UploadId=begun["UploadId"], PartNumber=1, Body=b"part")

    def left() -> list[str]:
        found = s3.list_multipart_uploads(Bucket="lake", Prefix=f"{name}/").get("Uploads", [])
        return sorted(each["Key"].removeprefix(f"{name}/") for each in found)

    assert drop_left_uploads(warehouse, spark, 50 * YEARS) == 0 and len(left()) == 4, "young ones may be under way"
    assert drop_left_uploads(warehouse, spark) == 2
    assert left() == ["other", "w2/x"]
    assert drop_left_uploads(Place("s3a://lake"), spark) == 0 and left() == ["other", "w2/x"], "others' it may be"
    assert drop_left_uploads(Place("/tmp"), spark) == 0


@of_a_store
def test_a_server_that_refuses_to_list_them_stops_nothing(spark: SparkSession) -> None:
    assert drop_left_uploads(Place("s3a://no-such-bucket/w"), spark) == 0


def test_of_a_whole_bucket_no_upload_is_looked_for() -> None:
    """Any application may have begun it. There is no session here that could ask the store."""
    session: Any = None
    assert [drop_left_uploads(Place(root), session) for root in ("s3a://lake", "s3a://lake/")] == [0, 0]
