"""The part of the site that is not in docs/: README, examples and sources that pages link to, the API reference.

mkdocs calls these functions (``hooks`` in mkdocs.yml). Nothing is written into docs/: the pages are made in memory,
and links to files of the repository lead to them.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trident
from tests.pages import made as pages

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
# Files of the repository that are pages under another name.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
GLOSSARY = "glossary.md"
FOLDERS = {"examples": "examples/index.md"}
# The API reference: a page, and the packages that its names are defined in.
API = {
    "topologies": ("Topologies, streams and queries", "topology streams running"),
    "operations": ("Operations: aggregators, joins, functions", "operations udf workers"),
    "spouts": ("Spouts", "spouts"),
    "states": ("States", "states"),
    "time_travel": ("Time travel", "time_travel repair commands"),
    "tuples": ("Tuple topologies", "tuples"),
    "events": ("Listeners and logs", "watching"),
    "settings": ("Settings, errors and the session", "config errors spark coordinators"),
}


# --- which page a file of the repository is --------------------------------------------------


def page_of(file: Path) -> str:
    """The page of the site that shows a file of the repository."""
    name = file.relative_to(ROOT).as_posix()
    if name in FOLDERS:
        return FOLDERS[name]
    if name in PAGES:
        return PAGES[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"{name}.md"


def file_of(page: str) -> Path:
    """The file of the repository that a page was made from."""
    by_page = {made: name for name, made in PAGES.items()}
    return ROOT / by_page.get(page, f"docs/{page}")


def linked_sources() -> set[Path]:
    """The files that pages link to and that are no pages, with all examples."""
    found = set((ROOT / "examples").rglob("[!_]*.py"))
    for page in [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]:
        for path, _ in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / path).resolve()
            if target.is_file() and target.suffix not in (".md", ".png"):
                found.add(target)
    return found


# --- the pages -------------------------------------------------------------------------------


def source_page(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    language = "python" if file.suffix == ".py" else "text"
    return f"# {file.relative_to(ROOT).as_posix()}\n\n````{language}\n{text.rstrip()}\n````\n"


def examples_page() -> str:
    lines = ["# Examples", "", "Each runs alone: `python examples/NAME`. The tests run all of them.", ""]
    for file in sorted((ROOT / "examples").rglob("[!_]*.py")):
        name = file.relative_to(ROOT / "examples").as_posix()
        about = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()
        lines.append(f"- [{name}]({name}.md): {re.sub(r'^[0-9]+: ', '', about[0])}")
    return "\n".join(lines) + "\n"


def api_pages() -> Iterator[tuple[str, str]]:
    """The API reference: every public name, on the page of the package that defines it."""
    index = ["# API reference", "", "Every name that `from trident import …` knows, made from the docstrings.", ""]
    left = dict(trident._HOME)
    for page, (title, packages) in API.items():
        names = sorted(name for name, home in left.items() if home.split(".")[1] in packages.split())
        body = [f"# {title}", ""]
        paths = {name: f"{left.pop(name)}.{name}" for name in names}
        for path in paths.values():
            body += [f"::: {path}", ""]
        links = ", ".join(f"[{name}]({page}.md#{path})" for name, path in paths.items())
        index.append(f"- [{title}]({page}.md): {links}")
        yield f"api/{page}.md", "\n".join(body)
    assert not left, f"add the packages of these names to API: {left}"
    yield "api/index.md", "\n".join(index) + "\n"


def made_pages() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        yield page, (ROOT / name).read_text(encoding="utf-8")
    for file in linked_sources():
        yield page_of(file), source_page(file)
    yield FOLDERS["examples"], examples_page()
    yield from api_pages()


# --- what mkdocs calls -----------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # of the extra "docs"

    for page, text in made_pages():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    name = page.file.src_uri
    if name.startswith(("api/", "examples/")) or name.endswith(".py.md"):
        return markdown
    return indented(with_links(markdown, name))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Roles of docstrings (``:class:`Name```) are shown as the name alone; words of the glossary lead there."""
    html = re.sub(r":(?:class|func|meth|mod|attr|data):(?=<code>)", "", html)
    if page.file.src_uri in (GLOSSARY, "contributing.md") or page.file.src_uri.endswith(".py.md"):
        return html
    return linked_words(html, posixpath.relpath("glossary.html", posixpath.dirname(page.file.src_uri) or "."))


def with_links(markdown: str, page: str) -> str:
    """The text with links between pages of the site, where they are links between files of the repository."""
    folder = file_of(page).parent

    def moved(found: re.Match[str]) -> str:
        target = page_of((folder / found[1]).resolve())
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{found[2] or ''})"

    return LINK.sub(moved, markdown)


# Elements whose text is no prose, or leads elsewhere already.
APART = ("a", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "script", "style", "svg", "button", "label", "nav")
TAG = re.compile(r"<!--.*?-->|<(/?)([a-zA-Z][\w-]*)[^>]*>", re.DOTALL)


@functools.lru_cache(maxsize=1)
def glossary_forms() -> dict[str, tuple[str, str]]:
    """How each word of the glossary is written in a text, in small letters: its anchor there, and its meaning."""
    found: dict[str, tuple[str, str]] = {}
    for words, meaning in pages.words():
        anchor = pages.anchor(words)
        meaning = meaning.replace("`", "").replace('"', "&quot;")
        for word in re.split(r"[,;] ", words.replace("`", "")):
            word = word.removeprefix("to ")
            plural = re.sub(r"y$", "ie", word) + ("es" if word.endswith(("ch", "sh", "ss")) else "s")
            for form in (word, plural):
                found.setdefault(form.lower(), (anchor, meaning))
    return found


def linked_words(html: str, glossary: str) -> str:
    """The page with each word of the glossary linked where it first stands in the prose.

    Args:
        glossary: the way from the page to the glossary.
    """
    forms = glossary_forms()
    longest_first = sorted(forms, key=len, reverse=True)
    word = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)
    seen: set[str] = set()

    def link(found: re.Match[str]) -> str:
        anchor, meaning = forms[found[0].lower()]
        if anchor in seen:
            return found[0]
        seen.add(anchor)
        return f'<a class="word" href="{glossary}#{anchor}" title="{meaning}">{found[0]}</a>'

    made, inside, at = [], 0, 0
    for tag in TAG.finditer(html):
        text = html[at : tag.start()]
        made += [text if inside else word.sub(link, text), tag[0]]
        if (tag[2] or "").lower() in APART and not tag[0].endswith("/>"):
            inside += -1 if tag[1] else 1
        at = tag.end()
    return "".join([*made, html[at:]])


def indented(markdown: str) -> str:
    """Lists as mkdocs wants them: an empty line in front, and their parts indented by four.

    GitHub needs no such line, and takes two blanks behind "-", three behind "1.".
    """
    lines: list[str] = []
    missing, code = 0, False
    for line in markdown.split("\n"):
        code ^= line.startswith("```")
        item = None if code else re.match(r"(?:(-)|\d+\.) ", line)
        if item:
            if not missing and lines and lines[-1]:
                lines.append("")
            missing = 2 if item[1] else 1
        elif code or (line and not line.startswith("  ")):
            missing = 0
        lines.append(f"{' ' * missing}{line}" if line.startswith("  ") else line)
    return "\n".join(lines)
