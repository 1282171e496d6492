"""A page that is loaded again."""

from __future__ import annotations


def reload(page):
    page.reload()
    page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
