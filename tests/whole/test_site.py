"""The site of the documentation: links lead to its pages, every public name is in it, and it needs no other host."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import trident
from tests.pages import site_hook

ROOT = site_hook.ROOT


def test_links_to_files_of_the_repository_lead_to_pages_of_the_site() -> None:
    moved = site_hook.with_links
    assert moved("[k](docs/kafka.md#rows) [e](examples) [l](LICENSE)", "index.md") == (
        "[k](kafka.md#rows) [e](examples/index.md) [l](LICENSE.md)"
    )
    assert (
        moved("[r](../README.md#install) [a](state.md)", "getting-started.md") == "[r](index.md#install) [a](state.md)"
    )
    assert moved("[o](../databases.md) [s](../../README.md)", "architecture/recovery.md") == (
        "[o](../databases.md) [s](../index.md)"
    )
    assert moved("[x](https://delta.io) [h](#here)", "index.md") == "[x](https://delta.io) [h](#here)"


def test_parts_of_lists_are_indented_as_the_site_wants_them() -> None:
    text = "1. one\n   more\n\n   ```\n   code\n   ```\n\nnext\n  as it is\n- two\n  more\n- three\n"
    made = "1. one\n    more\n\n    ```\n    code\n    ```\n\nnext\n  as it is\n\n- two\n    more\n- three\n"
    assert site_hook.indented(text) == made
    code = "```\n- as it is\n  here\n```\n"
    assert site_hook.indented(code) == code


def test_a_word_of_the_glossary_is_linked_where_it_first_stands_in_the_prose() -> None:
    page = "<h1>Batches</h1><p><code>txid</code> Of two batches, a batch and its txid: <a href='x'>epoch</a>.</p>"
    made = site_hook.linked_words(page, "../glossary.html")
    assert re.sub(r' title="[^"]+"', "", made) == (
        "<h1>Batches</h1><p><code>txid</code> Of two "
        '<a class="word" href="../glossary.html#batch">batches</a>, a batch and its '
        """<a class="word" href="../glossary.html#txid">txid</a>: <a href='x'>epoch</a>.</p>"""
    )
    # Every word has a form that is found, and leads to a heading of the page.
    headings = {site_hook.pages.anchor(word) for word, _ in site_hook.pages.words()}
    assert {anchor for anchor, _ in site_hook.glossary_forms().values()} == headings


def test_the_reference_has_every_public_name_once() -> None:
    pages = dict(site_hook.api_pages())
    named = re.findall(r"^::: (\S+)$", "\n".join(pages.values()), re.MULTILINE)
    assert sorted(named) == sorted(f"{home}.{name}" for name, home in trident._HOME.items())
    assert set(pages) == {"api/index.md", *(f"api/{page}.md" for page in site_hook.API)}


def test_every_page_of_the_menu_is_there() -> None:
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    made = {page for page, _ in site_hook.made_pages()}
    assert len(menu) > 30 and len(set(menu)) == len(menu)
    assert [page for page in menu if page not in made and not (ROOT / "docs" / page).exists()] == []
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"benchmarks-history.md"}
    pages |= {f"recipes/{path.name}" for path in (ROOT / "docs" / "recipes").glob("*.md")}
    assert pages - set(menu) == set(), "pages that the menu leaves out"


SITE = os.environ.get("TRIDENT_SITE")


@pytest.mark.skipif(SITE is None, reason="looks at the built site; make docs")
def test_links_to_the_glossary_lead_to_its_words() -> None:
    site = Path(SITE or "")
    anchors = set(re.findall(r'<h2 id="([^"]+)"', (site / "glossary.html").read_text(encoding="utf-8")))
    assert len(anchors) > 30
    linked = 0
    for page in site.rglob("*.html"):
        for way, anchor in re.findall(r'class="word" href="([^"#]+)#([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / way).resolve() == (site / "glossary.html").resolve() and anchor in anchors, (
                page,
                anchor,
            )
            linked += 1
    assert linked > 300


@pytest.mark.skipif(SITE is None, reason="looks at the built site; make docs")
def test_no_page_fetches_anything_from_another_host() -> None:
    site = Path(SITE or "")
    fetched = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    found = {(page.name, tag) for page in pages for tag in fetched.findall(page.read_text(encoding="utf-8"))}
    assert {(name, tag) for name, tag in found if 'rel="canonical"' not in tag} == set()
    assert not [page for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")], (
        "its script is not here"
    )
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles and not any(re.search(r"url\([\"']?(?:https?:)?//|@import", text) for text in styles)
