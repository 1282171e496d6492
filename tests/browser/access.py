"""Accessibility as axe sees it."""

import pytest

Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe


def serious(page) -> list[str]:
    """What axe-core calls serious or critical, with the elements."""
    found = Axe().run(page, options={"preload": False}).response["violations"]  # it would ask for the style sheets anew
    return [
        f"{rule['id']}: {node['html'][:160]} {node['any'][:1]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
