"""The pages of sections: which there are, and turning to one."""

IDLE = "(name) => !document.querySelector(`#${name} .sv-report`).hasAttribute('data-busy')"


SECTIONS = {
    "compare": [
        "race",
        "two-runs",
        "every-k",
        "costs",
        "other-drafts",
        "draft-temperature",
        "many-prompts",
        "theory",
        "why-slow",
        "waits",
        "claims",
        "poor-cases",
        "lossy",
        "claim-numbers",
        "tool-names",
    ],
    "check": ["identity", "one_step", "end_to_end", "side_by_side", "self_checks", "someone_else"],
    "learn": ["plan", "predict", "be-the-draft"],
}


def turn_to(page, name):
    page.click(f"#pages [data-page={name}]")
    if name in SECTIONS:
        page.wait_for_selector(f"#{name} [data-section={SECTIONS[name][-1]}]")
        page.wait_for_function(IDLE, arg=name)
