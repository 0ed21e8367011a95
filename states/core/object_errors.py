"""What an object store's library raises, as the ``OSError`` that fits."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from trident.states.core.local_storage import AnyPath, NotExclusive


@contextmanager
def told(path: AnyPath) -> Iterator[None]:
    """Raises the ``OSError`` that fits what the library raises."""
    text = os.fspath(path)
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _no_bucket(text) from error
        raise FileNotFoundError(errno.ENOENT, "no such object", text) from error
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
