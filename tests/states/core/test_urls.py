"""URLs of servers: one, several, IPv6; and nothing of their credentials in a message."""

from __future__ import annotations

import pytest

from trident.coordinators.errors import ConfigError
from trident.states.core.addresses import check_server_url, is_this_host, without_credentials

EXPECTED = "postgresql://host/database"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://me:secret@db/shop?password=secret", "postgresql://db/shop"),
        ("postgresql://me:secret@db1:5433,db2/shop", "postgresql://db1:5433,db2/shop"),
        ("postgresql://me:sec%40ret@[::1]:5433,db2:5434/shop", "postgresql://[::1]:5433,db2:5434/shop"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql:///shop"),
    ],
)
def test_a_url_of_one_or_several_servers_is_shown_without_its_credentials(url: str, shown: str) -> None:
    check_server_url(url, "a test", ["postgresql"], EXPECTED, several=True)
    assert without_credentials(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db:port/shop",
        "postgresql://db1:1,db2:99999/shop",
        "mysql://db",
        None,
        3,
        "postgresql://me:pa@ss@db/shop",  # libpq ends the password at the first @, and tells the rest as a host
        "postgresql://me:12/3@db/shop",  # no user, and a path: to be shown as it is
    ],
)
def test_what_names_no_server_is_refused_without_being_shown(url: object) -> None:
    with pytest.raises(ConfigError, match="the url of a test cannot be used; expected: postgresql://host/database$"):
        check_server_url(url, "a test", ["postgresql"], EXPECTED, several=True)


def test_the_address_of_a_page_may_have_an_at_sign_in_its_path() -> None:
    check_server_url("https://api/@me/orders", "a test", ["https"], EXPECTED)


def test_a_client_of_one_server_is_given_one() -> None:
    check_server_url("redis://cache:6379/1", "a test", ["redis"], EXPECTED)
    with pytest.raises(ConfigError):
        check_server_url("redis://cache1:6379,cache2:6379/1", "a test", ["redis"], EXPECTED)


def test_one_of_several_servers_that_each_host_takes_for_its_own_is_enough() -> None:
    assert is_this_host("postgresql://db1,localhost:5432/shop")
    assert not is_this_host("postgresql://db1,db2:5432/shop")
    assert not is_this_host("//localhost:$PORT")
