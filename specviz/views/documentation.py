"""The documents of the assets, which are Markdown, as pages of HTML that ask no network. Loads no torch."""

import html
import re
from itertools import pairwise

from markdown_it import MarkdownIt

from specviz.settings import assets_dir

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def document_page(name: str) -> str:
    """The page of a document, as "docs/README.md"; its headings have GitHub's ids. KeyError for any other name."""
    paths = {f"{path.parent.name}/{path.name}": path for path in assets_dir().glob("*/*.md")}
    tokens = MARKDOWN.parse(paths[name].read_text("utf-8"))
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"[^\w -]", "", inside.content.lower()).replace(" ", "-"))
    text = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    text = re.sub("<(pre|table)>", r'<\1 tabindex="0">', text)  # wide ones scroll, also by keys
    template = (assets_dir() / "web" / "documentation.html").read_text("utf-8")
    return template.replace("{title}", html.escape(tokens[1].content)).replace("{text}", text)
