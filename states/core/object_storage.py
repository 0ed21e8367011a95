"""An object store as a storage: S3, and what speaks its protocol, by obstore; one PUT makes a file, whole and durable.

There are no folders, renames, locks or flushes here. Two writers are told from each other by a conditional PUT
(``If-None-Match: *``), which the store must honour: ``storage.is_exclusive`` looks whether it does.
"""

from __future__ import annotations

import errno
import io
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import IO, Any, BinaryIO, cast

import obstore
from obstore import exceptions
from obstore.store import S3Store

from trident.states.core.local_storage import (
    AnyPath,
    LocalStorage,
    NotAllDeleted,
    NotExclusive,
    OutcomeUnknown,
    Signature,
    Stat,
)
from trident.states.core.remote_files import AppendedParts, RangedFile, StoreSettings, read_parts

# A file up to this size is sent from memory; a larger one waits on the host's disk until it is whole.
_SPOOL_BYTES = 64 << 20
# Parts of a file are fetched in pieces of this size.
_PIECE_BYTES = 4 << 20
_PAGE = 1_000
_WRITER = "trident-writer"
# After an outcome that is not known a conditional PUT is sent again so often, after these waits.
_AGAIN_SECS = (0.1, 0.5)


class ObjectStorage:
    """Implements ``Storage`` on one bucket.

    Args:
        root: scheme and bucket, such as ``s3a://lake``.
        settings: how it is reached.
    """

    keeps_names = lists_after = True

    def __init__(self, root: str, settings: StoreSettings) -> None:
        self._root, bucket = root, root.partition("://")[2]
        options = dict(settings.options)
        client: Any = {"timeout": timedelta(seconds=settings.timeout_secs)}
        if str(options.get("endpoint", "")).startswith("http:"):
            client["allow_http"] = True

        def store(retries: int) -> S3Store:
            retry: Any = {"max_retries": retries, "retry_timeout": timedelta(seconds=settings.retry_secs)}
            return S3Store(bucket, client_options=client, retry_config=retry, **options)

        self._store = store(5)
        # A PUT that takes a name must not be sent again by the library: the second would meet the first.
        self._once = store(0)

    # --- whole files --------------------------------------------------------------------------

    def read(self, path: AnyPath, start: int = 0) -> bytes:
        key = self._key(path)
        with _as_os_error(path):
            if not start:
                return bytes(obstore.get(self._store, key).bytes())
            try:
                return bytes(obstore.get(self._store, key, options={"range": {"offset": start}}).bytes())
            except exceptions.BaseError:
                if start < obstore.head(self._store, key)["size"]:
                    raise
                return b""  # refused as no part of it

    def input(self, path: AnyPath, buffering: int = 0) -> BinaryIO:
        key = self._key(path)
        with _as_os_error(path):
            head = obstore.head(self._store, key)

        def read_range(start: int, count: int) -> Any:
            options: Any = {"range": (start, start + count)}
            if head["e_tag"]:
                options["if_match"] = head["e_tag"]  # all parts of one version
            with _as_os_error(path):
                return obstore.get(self._store, key, options=options).bytes()

        file = RangedFile(head["size"], read_range)
        return cast("BinaryIO", io.BufferedReader(file, buffering or _PIECE_BYTES))

    def fetch(self, path: AnyPath) -> tuple[bytes, Stat]:
        with _as_os_error(path):
            got = obstore.get(self._store, self._key(path))
            return bytes(got.bytes()), _stat(got.meta)

    def write(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        with _as_os_error(path):
            obstore.put(self._store, self._key(path), data, use_multipart=False)

    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        self._claim(path, data)

    def _claim(self, path: AnyPath, data: bytes) -> Signature:
        """One conditional PUT; where its outcome is not known, it is looked who has the name.

        Where the name is free still, the PUT is sent again, for the same writer: whichever of the two comes first, the
        other one meets it, and it is ours. A refusal of the second is none of the first.
        """
        writer, unknown = uuid.uuid4().hex, None
        for wait_secs in (0.0, *_AGAIN_SECS):
            time.sleep(wait_secs)
            try:
                return self._claim_once(path, data, writer)
            except FileExistsError:
                raise
            except OutcomeUnknown as error:
                unknown = error
            except OSError as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(
                    errno.EIO, f"{unknown.strerror}; then {error.strerror}", os.fspath(path)
                ) from error
        assert unknown is not None
        raise unknown

    def _claim_once(self, path: AnyPath, data: bytes, writer: str) -> Signature:
        key = self._key(path)
        try:
            with _as_os_error(path):
                done = obstore.put(
                    self._once, key, data, mode="create", attributes={_WRITER: writer}, use_multipart=False
                )
                return _signature(done["e_tag"], len(data))
        except (FileNotFoundError, PermissionError, NotExclusive):
            raise
        except OSError as error:
            if error.errno == errno.ENODEV:  # no bucket: nothing was done
                raise
            # Taken; or the server did it, and its answer was lost, or is that to a second sending of the request.
            text = os.fspath(path)
            try:
                with _as_os_error(path):
                    found = self._written_by(key)
            except OSError as second:
                raise OutcomeUnknown(errno.EIO, f"{error.strerror}; then {second.strerror}", text) from error
            if found is None:
                raise OutcomeUnknown(error.errno, error.strerror, text) from error
            if found[0] == writer:
                return found[1]
            raise FileExistsError(errno.EEXIST, "the name is taken", text) from error

    def _written_by(self, key: str) -> tuple[object, Signature] | None:
        try:
            got = obstore.get(self._store, key, options={"head": True})
        except FileNotFoundError:
            return None
        return got.attributes.get(_WRITER), _signature(got.meta["e_tag"], got.meta["size"])

    def output(self, path: AnyPath, durable: bool = True) -> BinaryIO:
        return cast("BinaryIO", _Output(self, path))

    def send(self, path: AnyPath, file: IO[bytes], size: int) -> None:
        """Sends a whole file that is on this host, in parts where it is large."""
        with _as_os_error(path):
            obstore.put(self._store, self._key(path), file, use_multipart=size > _SPOOL_BYTES)

    @contextmanager
    def append(self, path: AnyPath, known: int = 0) -> Iterator[AppendedParts]:
        yield AppendedParts(self, path, known)

    def read_appended(self, path: AnyPath, start: int = 0) -> bytes | None:
        return read_parts(self, path, start)

    # --- names --------------------------------------------------------------------------------

    def objects(self, folder: AnyPath) -> list[tuple[str, int]]:
        """(name below the folder, size) of each object below it, however deep, in the order of their names."""
        with _as_os_error(folder):
            found = obstore.list(self._store, self._key(folder) or None).collect()
        return sorted(self._objects(folder, found))

    def _objects(self, folder: AnyPath, found: Iterable[Any]) -> Iterator[tuple[str, int]]:
        """Of what was listed the objects; Hadoop's markers of folders, whose names end with a slash, are none.

        The library takes the slash away: a marker is empty, and is not there by the name that is listed.
        """
        key = self._key(folder)
        for each in found:
            with _as_os_error(folder):
                if not each["size"] and not self._is_there(each["path"]):
                    continue
            yield each["path"][len(key) + 1 if key else 0 :], each["size"]

    def _is_there(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def pages(self, folder: AnyPath, after: str = "", deep: bool = False) -> Iterator[Sequence[tuple[str, Stat]]]:
        key = self._key(folder)
        begin = len(key) + 1 if key else 0
        with _as_os_error(folder):
            offset = f"{key}/{after}" if key and after else after or None
            for page in obstore.list(self._store, key or None, offset=offset, chunk_size=_PAGE):
                named = ((each["path"][begin:], each) for each in page)
                # A marker of a folder is empty, as ``_objects`` says; whether it is one is no matter here.
                yield [(name, _stat(each)) for name, each in named if each["size"] and (deep or "/" not in name)]

    def list(self, folder: AnyPath) -> list[str]:
        key = self._key(folder)
        with _as_os_error(folder):
            found: Any = obstore.list_with_delimiter(self._store, key or None)
        paths: list[str] = [*(each["path"] for each in found["objects"]), *found["common_prefixes"]]
        return [each.rpartition("/")[2] for each in paths]

    def stat(self, path: AnyPath) -> Stat | None:
        found = self.stat_file(path)
        if found is not None:
            return found
        key = self._key(path)
        with _as_os_error(path):
            below: Any = obstore.list(self._store, key or None, chunk_size=50)
            there = any(True for some in below for _ in self._objects(path, some))
        return Stat(0, 0, False, True, ()) if there else None

    def stat_file(self, path: AnyPath) -> Stat | None:
        if not (key := self._key(path)):
            return None  # the bucket; the library takes it for an empty object
        try:
            with _as_os_error(path):
                return _stat(obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def delete(self, path: AnyPath) -> bool:
        key = self._key(path)
        there = self.stat(path)
        if there is None:
            return False
        keys = [key] if there.is_file else [f"{key}/{name}" for name, _ in self.objects(path)]
        self._delete(path, keys)
        if there.is_folder and (left := self.objects(path)):
            raise NotAllDeleted([OSError(errno.ENOTEMPTY, "another process writes to it", f"{path}/{left[0][0]}")])
        return True

    def delete_files(self, paths: Sequence[AnyPath]) -> None:
        self._delete(paths[0], [self._key(path) for path in paths])

    def _delete(self, path: AnyPath, keys: Sequence[str]) -> None:
        with _as_os_error(path):
            for at in range(0, len(keys), 1000):
                obstore.delete(self._store, keys[at : at + 1000])

    def make_folder(self, folder: AnyPath, anchor: AnyPath) -> None:
        """Nothing: a folder is there when something lies in it."""

    def flush(self, path: AnyPath) -> None:
        """Nothing: what a PUT has answered is durable."""

    def draft(self, folder: AnyPath, name: str) -> str:
        return os.path.join(tempfile.gettempdir(), f"trident-{uuid.uuid4().hex}{name}")

    def hold(self, folder: AnyPath) -> ObjectFolder:
        return ObjectFolder(self, os.fspath(folder))

    def lock(self, path: AnyPath, anchor: AnyPath, shared: bool = False, timeout_secs: float | None = None) -> Any:
        """Nothing: machines share the store."""
        return nullcontext()

    def _key(self, path: AnyPath) -> str:
        text = os.fspath(path)
        if text != self._root and not text.startswith(f"{self._root}/"):
            raise ValueError(f"{text} is not in {self._root}")
        return text[len(self._root) + 1 :].rstrip("/")


class ObjectFolder:
    """Implements ``Folder``; there is no handle: a folder that was deleted and made again is the same one."""

    renames = drafts = False

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage, self._path = storage, path.rstrip("/")

    def __enter__(self) -> ObjectFolder:
        return self

    def __exit__(self, *_: object) -> None: ...

    def names(self) -> list[str]:
        return self._storage.list(self._path)

    def stat(self, name: str) -> Stat | None:
        return self._storage.stat_file(f"{self._path}/{name}")

    def claim(self, draft: AnyPath, name: str) -> Signature:
        return self._storage._claim(f"{self._path}/{name}", LocalStorage().read(draft))

    def rename(self, name: str, other: str) -> None:
        data = self._storage.read(f"{self._path}/{name}")
        self._storage.create(f"{self._path}/{other}", data)
        self.delete(name)

    def delete(self, name: str) -> bool:
        return self._storage.delete(f"{self._path}/{name}")

    def flush(self) -> None: ...


class _Output(io.RawIOBase):
    """A new file: it is in the store once it is closed without an error, and not before."""

    def __init__(self, storage: ObjectStorage, path: AnyPath) -> None:
        self._storage, self._path = storage, path
        self._spool = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._spool.write(data)
        self._size += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._spool.seek(0)
            self._storage.send(self._path, cast("IO[bytes]", self._spool), self._size)
        finally:
            self._spool.close()
            super().close()


def _signature(e_tag: str | None, size: int) -> Signature:
    return e_tag or "", size


def _stat(found: Mapping[str, Any]) -> Stat:
    changed = int(found["last_modified"].timestamp() * 1000) * 1_000_000
    return Stat(found["size"], changed, True, False, _signature(found["e_tag"], found["size"]))


@contextmanager
def _as_os_error(path: AnyPath) -> Iterator[None]:
    """Raises the ``OSError`` that fits what the library raises."""
    text = os.fspath(path)
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _no_bucket(text) from error
        raise FileNotFoundError(errno.ENOENT, "no such object", text) from error
    except exceptions.PreconditionError as error:
        raise OSError(errno.ESTALE, "the object is another one than when it was opened", text) from error
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "the name is taken", text) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _first_line(error), text) from error
    except exceptions.NotSupportedError as error:
        raise NotExclusive(errno.EOPNOTSUPP, _first_line(error), text) from error
    except exceptions.BaseError as error:
        if "NoSuchBucket" in str(error):
            raise _no_bucket(text) from error
        if "403 Forbidden" in str(error) or "<Code>AccessDenied" in str(error):
            raise PermissionError(errno.EACCES, _first_line(error), text) from error
        raise OSError(errno.EIO, _first_line(error), text) from error


def _no_bucket(path: str) -> OSError:
    return OSError(errno.ENODEV, "the bucket does not exist", path)


def _first_line(error: Exception) -> str:
    """The store's own code and message where it gave them."""
    text = str(error)
    said = [found[1] for part in ("Code", "Message") if (found := re.search(rf"<{part}>([^<]*)</{part}>", text))]
    return (": ".join(said) or text.strip().partition("\n")[0])[:500]
