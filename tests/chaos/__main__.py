"""python -m tests.chaos [--inputs 20000] [--seed 0]: attacks a server of its own on this machine, and reports figures.

Every input is seeded. Found wanting: a dead server, an answer that took over 2 s of CPU, a bare 500, a foreign look-up,
a page that would run a script in our origin, or memory beyond its bound.
"""

import argparse
import sys

from tests.chaos.attack import attack

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = attack(options.inputs, options.seed, say=lambda words: print(words, flush=True))
    print(report.words())
    sys.exit(0 if report.holds else 1)
