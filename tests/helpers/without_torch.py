"""What works where no torch is installed: python without_torch.py FOLDER leaves the tables that it writes there.

`show` and `export` of a recorded run, a page, the CSV of every trace, the lab's tables. Needs no test package, but the
repository and this folder on its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specviz.alignment import outputs
from specviz.alignment.tables.shard_tables import build_tables
from specviz.cli.main import main
from specviz.trace import export as exports
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.explore.run_file import stage_page
from tests.helpers import analysed_texts, traces


def write_all(folder: Path) -> None:
    made = {name: make() for name, make in traces.ALL.items()} | {name: shipped_trace(name) for name in shipped_runs()}
    for name, trace in made.items():
        (folder / f"{name}-tokens.csv").write_bytes(exports.tokens_csv(trace).encode())
        (folder / f"{name}-steps.csv").write_bytes(exports.steps_csv(trace).encode())
    assert "<!doctype html>" in stage_page(made["chain"], charts=True)
    made["chain"].save(folder / "run.jsonl")
    assert main(["show", str(folder / "run.jsonl")]) == 0
    assert main(["export", str(folder / "run.jsonl"), "--html", str(folder / "run.html")]) == 0
    texts = [analysed_texts.text(number, drafts=("one", "two"), size=12, tags=("a",)) for number in range(3)]
    rows = [text.written.row for text in texts]
    list(outputs.write_tables(folder, [build_tables(texts, analysed_texts.shard(rows, ("one", "two")))]))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
    assert not {"torch", "transformers", "gradio"} & set(sys.modules)
