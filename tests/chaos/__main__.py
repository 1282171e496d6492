"""python -m tests.chaos [--inputs 20000] [--seed 0]: attacks a server of its own on this machine, and reports figures.
python -m tests.chaos folders [--inputs 320] [--seed 0]: tries damaged model folders without a server, and counts.
python -m tests.chaos soak [--minutes 30] [--visitors 30]: ordinary visitors for a long time, and what grows.

All is seeded. An attack finds wanting: a dead server, an answer that took too much CPU, a bare error, a traceback in
the server's log, a foreign look-up, a page that would run a script in our origin, memory beyond its bound. Folders: one
that ends neither in words nor in a run. A soak: whatever grows after warm-up.
"""

import argparse
import sys

from tests.chaos.attack import attack
from tests.chaos.folders import try_folders
from tests.chaos.soak import soak

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("form", nargs="?", choices=("attack", "folders", "soak"), default="attack")
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--visitors", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work, given = {
        "attack": (attack, (options.inputs or 20_000,)),
        "folders": (try_folders, (options.inputs or 320,)),
        "soak": (soak, (options.minutes, options.visitors)),
    }[options.form]
    report = work(*given, options.seed, say=lambda words: print(words, flush=True))
    print(report.words())
    sys.exit(0 if report.holds else 1)
