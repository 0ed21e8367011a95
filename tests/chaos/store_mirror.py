"""A copy on this disk of what a warehouse in a store holds: for checkers that read without the framework's code.

S3 is read by boto3 and HDFS by its own client, each straight at the server: neither the framework nor the library that
it uses for S3 is asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from hdfs_native import Client

from trident.states.core import storage

Listed = Iterator[tuple[str, object]]


class Mirror:
    """The folder is as the store was when ``bring`` was called last.

    Args:
        url: of the warehouse; anything that does not contain ``://`` is on a disk already, and is its own mirror.
        folder: where the copy is made.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.path = Path(url) if "://" not in url else folder
        self._known: dict[str, object] = {}
        self._listed, self._fetched = _disk() if "://" not in url else _s3(url) if url[:3] == "s3a" else _hdfs(url)

    def bring(self) -> None:
        """Fetches what is new or changed and removes what is gone; listed first, so that no entry comes too early."""
        found = dict(self._listed())
        for name in self._known.keys() - found.keys():
            (self.path / name).unlink()
            del self._known[name]
        for name, stamp in found.items():
            if self._known.get(name) != stamp:
                try:
                    data = self._fetched(name)
                except FileNotFoundError:
                    continue
                if self.path.joinpath(name).is_dir():  # listed once as a file's place, and a folder now
                    shutil.rmtree(self.path / name)
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_bytes(data)
                self._known[name] = stamp


def _disk() -> tuple[Callable[[], Listed], Callable[[str], bytes]]:
    return lambda: iter(()), lambda name: b""


def _s3(url: str) -> tuple[Callable[[], Listed], Callable[[str], bytes]]:
    parts = urlsplit(url)
    given = storage.settings_of(f"s3a://{parts.netloc}")
    client = boto3.client(
        "s3",
        endpoint_url=given["fs.s3a.endpoint"],
        region_name=given["fs.s3a.endpoint.region"],
        aws_access_key_id=given["fs.s3a.access.key"],
        aws_secret_access_key=given["fs.s3a.secret.key"],
    )
    above = parts.path.strip("/") + "/"

    def listed() -> Listed:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=parts.netloc, Prefix=above):
            for each in page.get("Contents", ()):
                if not each["Key"].endswith("/"):
                    yield each["Key"][len(above) :], (each["ETag"], each["LastModified"])

    def fetched(name: str) -> bytes:
        try:
            return client.get_object(Bucket=parts.netloc, Key=above + name)["Body"].read()
        except client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(name) from error

    return listed, fetched


def _hdfs(url: str) -> tuple[Callable[[], Listed], Callable[[str], bytes]]:
    parts = urlsplit(url)
    client = Client(f"{parts.scheme}://{parts.netloc}", {})
    above = parts.path.rstrip("/") + "/"

    def listed() -> Listed:
        while True:
            try:
                found = list(client.list_status(above, recursive=True))
                break
            except FileNotFoundError:  # there is nothing yet; or a folder went while it was listed
                try:
                    client.get_file_info(above)
                except FileNotFoundError:
                    return
        for each in found:
            if not each.isdir:
                yield each.path[len(above) :], (each.length, each.modification_time)

    def fetched(name: str) -> bytes:
        file = client.read(above + name)
        size = len(file)
        return bytes(file.read_range(0, size)) if size else b""

    return listed, fetched
