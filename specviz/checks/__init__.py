"""The claims on screen, each checked against a distribution that the code under test does not compute.

Long work is a generator of cumulative results with `done` and `total`; closing it stops the work.
"""
