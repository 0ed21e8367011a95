"""The live page in a headless Chromium, over a real topology: what a person would do, wide and narrow, light and dark.

One browser and one topology, which is stopped and started again. ``TRIDENT_SCREENSHOTS=FOLDER`` keeps pictures.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.messages.message_helpers import Messages
from tests.servers.zk_fixtures import eventually, wait_for
from tests.topology_helpers import Starter, starter
from tests.watching.browser import chromium, picture, shape
from tests.watching.page_topology import page_topology
from trident import TridentConfig
from trident.commands.ui import serve
from trident.running.query import TopologyQuery

WAIT_SECS = 120.0
LINES = {n: f"storm trident word{n} {'poison' if n == 3 else 'delta'}" for n in range(8)}
SETTINGS = {
    "batch_emit_interval_secs": 0.3,
    "max_replays": 1,
    "replay_backoff_secs": 0.01,
    "max_attempts": 100_000,
    "status_interval_secs": 0.2,
}


class Person:
    """Looks at the page, and acts on it, by what is to be read there."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def text(self, css: str) -> str:
        return str(self.browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def waits_for(self, what: Callable[[], Any], said: str) -> Any:
        return wait_for(what, lambda: f"never {said}; the page says:\n{self.text('body')}", WAIT_SECS)

    def reads(self, css: str, text: str) -> None:
        self.waits_for(lambda: text in self.text(css), f"read {text!r} in {css}")

    def focused(self) -> str:
        return str(self.browser.execute_script("return document.activeElement.outerHTML"))

    def presses(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def goes_to(self, css: str, text: str = "") -> None:
        """Sets the focus on the first such element, as Tab does sooner or later."""
        script = """
            const all = [...document.querySelectorAll(arguments[0])];
            const found = all.find((one) => one.innerText.includes(arguments[1]));
            found?.focus(); return found !== undefined && document.activeElement === found"""
        self.waits_for(lambda: self.browser.execute_script(script, css, text), f"could go to {css} {text}")

    def opens(self, css: str, text: str) -> None:
        """Opens what can be opened, by the keyboard."""
        self.goes_to(f"{css} summary", text)
        self.presses(" ")

    def looks_up(self, state: str, key: str) -> None:
        from selenium.webdriver import Keys

        self.goes_to(f"form[aria-label='Look up a key of {state}'] input")
        self.browser.execute_script("document.activeElement.value = ''")
        self.presses(key, Keys.ENTER)

    def finds(self, state: str, key: str, text: str) -> None:
        """Looks the key up until the page says `text`: a look-up shows one moment, and later transactions change it."""

        def found() -> bool:
            self.looks_up(state, key)
            return eventually(lambda: text in self.text(f"#found-{state}"), 2)

        self.waits_for(found, f"found {text!r} for {key} in {state}")

    def keeps(self, name: str, whole: bool = False) -> None:
        folder = os.environ.get("TRIDENT_SCREENSHOTS")
        if folder:
            picture(self.browser, Path(folder) / f"{name}.png", whole=whole)

    def sees_no_problem(self) -> None:
        """Nothing is cut off at the side, and the browser has found nothing to complain of."""
        wide, there = self.browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= there, f"{wide} px wide on a screen of {there}"
        bad = [one for one in self.browser.get_log("browser") if one["level"] == "SEVERE"]
        # While the topology is stopped its address answers nothing.
        assert [
            one for one in bad if "ERR_CONNECTION" not in one["message"] and "ERR_INCOMPLETE" not in one["message"]
        ] == []


@pytest.fixture
def person() -> Iterator[Person]:
    with chromium() as browser:
        yield Person(browser)


@pytest.fixture
def start(person: Person, spark: Any, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[Starter]:
    with starter(spark, zk_server, zk_root, tmp_path, **SETTINGS) as started:
        yield started


def test_a_person_sees_a_batch_fail_and_recover_finds_a_key_and_replays_a_dead_letter(
    person: Person, start: Starter, tmp_path: Path
) -> None:
    messages = Messages("line string", LINES.items())
    query = start(page_topology(tmp_path, messages), http="127.0.0.1:0")
    address = person.waits_for(lambda: query.http_address, "listened")
    shape(person.browser, 1280, 900, dark=False)
    person.browser.get(f"http://{address}/")
    sees_it_run(person)
    sees_a_batch_fail_and_recover(person, tmp_path)
    finds_keys(person)
    replays_a_dead_letter(person, tmp_path)
    person.keeps("wide-light", whole=True)
    sees_who_waits(person, start, tmp_path)
    on_a_telephone_in_the_dark(person)
    address = loses_and_finds_the_topology(person, query, start, tmp_path, address)
    of_a_warehouse_that_no_process_runs(person, start, tmp_path)


def sees_it_run(person: Person) -> None:
    person.reads("#connection-text", "live")
    person.reads("#role", "leader")
    for text in ("each(split)", "counts", "sales", "rows/s"):
        person.reads("#plan", text)
    person.waits_for(lambda: re.search(r"[1-9][\d.,]* rows/s", person.text("#plan")), "saw rows on an edge")
    person.waits_for(lambda: len(person.browser.find_elements("css selector", "#bars .one")) >= 5, "saw five bars")
    stages: set[str] = set()

    def moved() -> bool:
        lines = person.text("#flight-list").split("\n")
        stages.update(line.partition(" for ")[0] for line in lines if " for " in line)
        return len(stages) >= 3

    person.waits_for(moved, "saw a transaction move through its phases")
    person.sees_no_problem()


def sees_a_batch_fail_and_recover(person: Person, folder: Path) -> None:
    (folder / "down").touch()
    person.reads("#failure-list", "the price list does not answer")
    person.reads("#failure-list", "while it was processed: replayed")
    person.reads("#flight-list", "failed")
    person.keeps("failing")
    (folder / "down").unlink()
    person.reads("#failure-list", "has advanced since")
    person.opens("#failure-list", "the price list does not answer")
    person.reads("#failure-list details[open] pre", "in priced")
    assert "page_topology.py" in person.text("#failure-list details[open] pre")


def finds_keys(person: Person) -> None:
    # Seven lines are counted; the eighth is the dead letter.
    person.finds("counts", "storm", '"count": 7')
    person.finds("counts", "nothing", "does not have this key")
    person.finds("revenue", "lamp", '"total"')
    for text in ("keyed", "append", "rows", "in"):
        person.reads("#state-list", text)
    person.reads("#state-list", "plain table")


def replays_a_dead_letter(person: Person, folder: Path) -> None:
    person.reads("#letter-note", "1 dead letter")
    person.opens("#letter-list", "message 3")
    person.reads("#letter-list details[open]", "ValueError: this word is poison")
    person.reads("#letter-list details[open] dl", "storm trident word3 poison")
    assert "raise ValueError" in person.text("#letter-list details[open] pre")
    person.keeps("dead-letter")
    (folder / "cured").touch()
    person.goes_to("#letter-list button")
    person.presses(" ")
    person.reads("#letter-said", "1 to be tried again")
    person.reads("#letter-list .fate", "acked")
    assert person.browser.execute_script("return document.querySelector('#letter-list button').disabled")
    person.finds("counts", "poison", '"count": 1')


def sees_who_waits(person: Person, start: Starter, folder: Path) -> None:
    person.reads("#leader-list", "This process leads")
    person.reads("#leader-list", "Standbys: none")
    person.reads("#leader-list", "this process took over with epoch 1")
    standby = start(page_topology(folder, Messages("line string")))
    person.reads("#leader-list", "Standbys: 1")
    standby.stop(WAIT_SECS)
    person.reads("#leader-list", "Standbys: none")


def on_a_telephone_in_the_dark(person: Person) -> None:
    from selenium.webdriver import Keys

    shape(person.browser, 360, 740, dark=True, still=True)
    person.browser.refresh()
    person.reads("#connection-text", "live")
    person.reads("#plan", "each(split)")
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert person.browser.execute_script(ground) == "rgb(18, 21, 27)"
    person.waits_for(lambda: len(person.browser.find_elements("css selector", "#bars .one")) >= 5, "saw five bars")
    duration = "return getComputedStyle(document.querySelector('.ball')).transitionDuration"
    person.waits_for(lambda: person.browser.find_elements("css selector", ".ball"), "saw a transaction")
    assert (
        person.browser.execute_script(f"return document.querySelector('.ball') ? (() => {{ {duration} }})() : '0s'")
        == "0s"
    )
    # From the top by the keyboard: the skip link first, and all that has the focus shows it.
    person.browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    person.presses(Keys.TAB)
    assert "Skip to the content" in person.focused()
    outline = "return getComputedStyle(document.activeElement).outlineWidth"
    for _ in range(6):
        person.presses(Keys.TAB)
        assert person.browser.execute_script(outline) == "3px", person.focused()
    person.goes_to("#bars")
    person.presses(Keys.END)
    person.reads("#bar-detail", "Transaction ")
    first = person.text("#bar-detail")
    person.presses(Keys.ARROW_LEFT)
    person.waits_for(lambda: person.text("#bar-detail") not in ("", first), "read another bar")
    assert "process" in person.text("#bar-detail")
    person.looks_up("counts", "storm")
    person.reads("#found-counts", '"count": 8')
    person.opens("#letter-list", "message 3")
    person.reads("#letter-list details[open]", "ValueError: this word is poison")
    person.sees_no_problem()
    unnamed = """const all = 'button, input, a, summary, [role=region], [role=listbox]';
        return [...document.querySelectorAll(all)].filter((one) => !(
        one.innerText.trim() || one.getAttribute('aria-label') || one.labels?.length
        )).map((one) => one.outerHTML)"""
    assert person.browser.execute_script(unnamed) == []
    person.browser.execute_script("scrollTo(0, 0)")
    person.keeps("narrow-dark", whole=True)


def loses_and_finds_the_topology(
    person: Person, query: TopologyQuery, start: Starter, folder: Path, address: str
) -> str:
    query.stop(WAIT_SECS, compact=False)
    person.reads("#connection-text", "connection lost")
    assert "shop" in person.text("#name"), "the last state stays to be read"
    start(page_topology(folder, Messages("line string")), http=address)
    person.reads("#connection-text", "live")
    person.reads("#leader-list", "epoch 2")
    person.waits_for(lambda: len(person.browser.find_elements("css selector", "#bars .one")) >= 2, "saw new bars")
    return address


def of_a_warehouse_that_no_process_runs(person: Person, start: Starter, folder: Path) -> None:
    start.queries[-1].stop(WAIT_SECS, compact=False)
    told: list[str] = []
    stop = threading.Event()
    config = TridentConfig(warehouse=str(folder / "warehouse"))
    server = threading.Thread(target=serve, args=("shop", config, 0, told.append, stop), daemon=True)
    server.start()
    try:
        shape(person.browser, 1280, 900, dark=True)
        person.browser.get(person.waits_for(lambda: told, "served")[0])
        person.reads("#role", "stopped")
        person.reads("#about", "read only")
        person.reads("#plan", "From the warehouse alone")
        person.waits_for(lambda: len(person.browser.find_elements("css selector", "#bars .one")) >= 5, "saw the past")
        person.looks_up("counts", "storm")
        person.reads("#found-counts", '"count": 8')
        person.reads("#letter-note", "No replay from here")
        person.opens("#letter-list", "message 3")
        person.reads("#letter-list details[open]", "ValueError: this word is poison")
        assert person.browser.find_elements("css selector", "#letter-list button") == []
        person.reads("#leader-list", "epoch 2")
        person.sees_no_problem()
        person.keeps("warehouse-dark", whole=True)
    finally:
        stop.set()
        server.join(WAIT_SECS)
