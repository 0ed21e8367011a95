"""How an object store is reached: Hadoop's settings in the words of the library that tasks use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StoreSettings:
    """How a bucket is reached. The SDK's own chain gives each None: environment, web identity, instance.

    Attributes:
        options: obstore's names of settings, such as ``endpoint``; secrets are not shown.
        timeout_secs: of one request.
        retry_secs: for so long requests that may be repeated are.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_secs: float = 30.0
    retry_secs: float = 20.0


def store_settings(hadoop: Mapping[str, str], bucket: str = "") -> StoreSettings:
    """Hadoop's settings of a store in obstore's words: so that Spark and the framework's tasks reach the same one.

    Args:
        bucket: of which settings of its own count more.
    """
    own = f"fs.s3a.bucket.{bucket}."
    hadoop = {**hadoop, **{f"fs.s3a.{key[len(own) :]}": value for key, value in hadoop.items() if key.startswith(own)}}
    named = {
        "fs.s3a.endpoint": "endpoint",
        "fs.s3a.endpoint.region": "region",
        "fs.s3a.access.key": "access_key_id",
        "fs.s3a.secret.key": "secret_access_key",
        "fs.s3a.session.token": "session_token",
    }
    options: dict[str, Any] = {ours: hadoop[theirs] for theirs, ours in named.items() if hadoop.get(theirs)}
    if (endpoint := options.get("endpoint", "")) and "://" not in endpoint:
        secure = hadoop.get("fs.s3a.connection.ssl.enabled", "true") != "false"
        options["endpoint"] = f"{'https' if secure else 'http'}://{endpoint}"
    if hadoop.get("fs.s3a.path.style.access", "false") == "false" and not endpoint:
        options["virtual_hosted_style_request"] = True
    return StoreSettings(options)
