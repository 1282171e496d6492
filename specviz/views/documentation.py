"""The Markdown documents of the assets as pages of HTML that ask no network. Loads no torch."""

import html
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from specviz.settings import assets_dir
from specviz.views.blocks import TableBlock
from specviz.views.document import NOTHING_ELSE, script_hash

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
NAVIGATION = re.compile(r"<nav .*?</nav>\n")
UNKNOWN_NAME = """{known}

Your browser asked for it by a name that nobody gave it. It answers only to names that it knows, so that no other site
can act here for you.

## To open the page now

Type the address that the server printed when it was started. {where}: [{address}]({address})

## For whoever started the server

If the name is yours, add `--allow-host {name}` to the command that starts it, as in

```sh
specviz{host} --allow-host {name}
```
"""
REFUSED = "This address was refused"
LINKED = re.compile(r'(<a href="(?!https?:)[^"#]+)\.md(?=[#"])')


def documents() -> dict[str, Path]:
    """The files of all documents by name, as "docs/README.md"."""
    return {f"{path.parent.name}/{path.name}": path for path in assets_dir().glob("*/*.md")}


def document_page(name: str, suffix: str = ".md") -> str:
    """The page of a document; its headings have GitHub's ids.

    suffix: the end of the addresses of other documents. Raises KeyError for an unknown name.
    """
    tokens = MARKDOWN.parse(documents()[name].read_text("utf-8"))
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"[^\w -]", "", inside.content.lower()).replace(" ", "-"))
    text = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    text = re.sub("<(pre|table)>", r'<\1 tabindex="0">', text)  # wide ones scroll, also by keys
    text = text.replace("<code", '<code translate="no"')
    return LINKED.sub(rf"\1{suffix}", _filled(_template(), tokens[1].content, text))


@cache
def document_table(name: str, head: str) -> tuple[str, TableBlock]:
    """The headings above the table of a document whose first column has this head, and the table, in plain texts.

    name: as in `documents`. Raises StopIteration where there is no such table.
    """
    tokens = iter(pairwise(MARKDOWN.parse(documents()[name].read_text("utf-8"))))
    headings: dict[str, str] = {}  # by level; a higher one ends the lower ones
    for token, inside in tokens:
        if token.type == "heading_open":
            headings = {tag: words for tag, words in headings.items() if tag < token.tag}
            headings[token.tag] = inside.content
        elif token.type == "th_open" and _plain(inside.content) == head:
            break
    columns = [head]
    rows: list[list[str]] = []
    while token.type != "table_close":
        token, inside = next(tokens)
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            row = rows[-1] if rows else columns
            row.append(_plain(inside.content))
    return " · ".join(headings.values()), TableBlock(columns, rows)


def _plain(cell: str) -> str:
    """A cell of Markdown without the marks of code."""
    return cell.replace("`", "")


def refusal_page(words: str) -> str:
    """A page that says why an address was refused."""
    sentence = html.escape(words[:1].upper() + words[1:])
    return _bare_page(REFUSED, f"<h1>{REFUSED}</h1>\n<p>{sentence}</p>\n")


def unknown_name_page(name: str | None, address: str, is_local: bool) -> str:
    """A page for a browser that asked for the server by a name that it does not know.

    name: a plain host name, None for any other text. address: the one to use instead. is_local: whether the request
    came from the server's own machine, or its proxy.
    """
    known = "# This server does not know this name"
    if name:
        known = f"# This server does not know the name `{name}`"
    where = "In the server's own network, try this one"
    host = " --host 0.0.0.0"
    if is_local:
        where = "On the server's own machine, this one works"
        host = ""
    markdown = UNKNOWN_NAME.format(
        known=known, where=where, address=address, host=host, name=name or "NAME"
    )
    text = MARKDOWN.render(markdown)
    text = text.replace("<pre>", '<pre tabindex="0">').replace("<code", '<code translate="no"')
    return _bare_page(f"{name or 'This name'} is not known here", text)


def _bare_page(title: str, text: str) -> str:
    """A page that runs no script and leads to no document."""
    return _filled(SCRIPT.sub("", NAVIGATION.sub("", _template())), title, text)


def _template() -> str:
    return (assets_dir() / "web" / "documentation.html").read_text("utf-8")


def _filled(template: str, title: str, text: str) -> str:
    """The template with its policy, this title, and this HTML."""
    policy = NOTHING_ELSE
    if script := SCRIPT.search(template):
        policy += f"; script-src {script_hash(script[1])}"
    for place, words in {"policy": policy, "title": html.escape(title), "text": text}.items():
        template = template.replace(f"{{{place}}}", words)
    return template
