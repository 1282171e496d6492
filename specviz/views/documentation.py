"""The documents of the assets, which are Markdown, as pages of HTML that ask no network. Loads no torch."""

import html
import re
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from specviz.settings import assets_dir
from specviz.views.document import NOTHING_ELSE, script_hash

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
NAVIGATION = re.compile(r"<nav .*?</nav>\n")
REFUSED = "This address was refused"
LINKED = re.compile(r'(<a href="(?!https?:)[^"#]+)\.md(?=[#"])')


def documents() -> dict[str, Path]:
    """The files of all documents by their names, as "docs/README.md"."""
    return {f"{path.parent.name}/{path.name}": path for path in assets_dir().glob("*/*.md")}


def document_page(name: str, suffix: str = ".md") -> str:
    """The page of a document; its headings have GitHub's ids. suffix: of the pages it links to. KeyError if unknown."""
    tokens = MARKDOWN.parse(documents()[name].read_text("utf-8"))
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"[^\w -]", "", inside.content.lower()).replace(" ", "-"))
    text = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    text = re.sub("<(pre|table)>", r'<\1 tabindex="0">', text)  # wide ones scroll, also by keys
    text = text.replace("<code", '<code translate="no"')
    return LINKED.sub(rf"\1{suffix}", _filled(_template(), tokens[1].content, text))


def refusal_page(words: str) -> str:
    """A page that says why an address was refused. It runs no script and leads nowhere."""
    text = f"<h1>{REFUSED}</h1>\n<p>{html.escape(words[:1].upper() + words[1:])}</p>\n"
    return _filled(SCRIPT.sub("", NAVIGATION.sub("", _template())), REFUSED, text)


def _template() -> str:
    return (assets_dir() / "web" / "documentation.html").read_text("utf-8")


def _filled(template: str, title: str, text: str) -> str:
    """The template with its policy, this title, and this HTML."""
    script = SCRIPT.search(template)
    policy = NOTHING_ELSE if script is None else f"{NOTHING_ELSE}; script-src {script_hash(script[1])}"
    for place, words in {"policy": policy, "title": html.escape(title), "text": text}.items():
        template = template.replace(f"{{{place}}}", words)
    return template
