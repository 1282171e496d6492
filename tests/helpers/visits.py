"""A visitor of the pages of sections."""

import json

from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.ui.page import reports
from specviz.ui.registry import Registry
from specviz.ui.view import view_of
from tests.helpers import tiny_server


class Visit:
    """One browser before both pages, with a trace on its stage."""

    def __init__(self, pool, trace=None):
        self.bench, registry = Workbench(pool), Registry()
        self.pages = reports(registry, self.bench, tiny_server.tiny_offer())
        self.run = None if trace is None else registry.show(view_of(trace), "one").id

    def look(self, page, step=None, ref=None):
        said = self.pages[page].look("one", {"place": {"run": self.run, "step": step, "ref": ref}})
        found = {}
        for message in map(json.loads, said):
            found |= {section["id"]: section for section in message["sections"]}
        return found

    def press(self, page, section, does, values, step=None, ref=None):
        place = {"run": self.run, "step": step, "ref": ref}
        data = {"section": section, "do": does, "values": values, "place": place}
        *_, last = self.pages[page].act("one", data)
        return {each["id"]: each for each in json.loads(last)["sections"]}


def made(pool, **changes):
    request = tiny_server.tiny_offer(max_new_tokens=24).first
    run = session.open_run(tiny_server.replace(request, **changes), bench=Workbench(pool))
    for _ in run.events():
        pass
    return run.trace


def said(section):
    return json.dumps(section["blocks"], ensure_ascii=False)
