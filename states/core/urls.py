"""URLs of servers in messages: without the credentials that they may have."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

_SECRET = ("username", "user", "password", "sslpassword")


def without_credentials(url: str) -> str:
    """The url without its user, its password and its query."""
    parts = urlsplit(url)
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{host}{parts.path}"


def without_secrets(text: str, url: str) -> str:
    """The text with the url's credentials, in either form, struck out."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    secrets = [parts.username, parts.password, *(value for name in _SECRET for value in query.get(name, ()))]
    for secret in sorted((secret for secret in secrets if secret), key=len, reverse=True):
        for form in {secret, unquote(secret)}:
            text = text.replace(form, "***")
    return text
