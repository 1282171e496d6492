"""python -m tests.chaos [--inputs 20000] [--seed 0]: attacks a server of its own on this machine, and reports figures.
python -m tests.chaos soak [--minutes 30] [--visitors 30]: ordinary visitors for a long time, and what grows.

All is seeded. An attack finds wanting: a dead server, an answer that took over 2 s of CPU, a bare error, a foreign
look-up, a page that would run a script in our origin, memory beyond its bound. A soak: whatever grows after warm-up.
"""

import argparse
import sys

from tests.chaos.attack import attack
from tests.chaos.soak import soak

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("form", nargs="?", choices=("attack", "soak"), default="attack")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--visitors", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    given = (options.inputs,) if options.form == "attack" else (options.minutes, options.visitors)
    work = {"attack": attack, "soak": soak}[options.form]
    report = work(*given, options.seed, say=lambda words: print(words, flush=True))
    print(report.words())
    sys.exit(0 if report.holds else 1)
