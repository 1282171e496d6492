"""Exactness made checkable: the claims on screen, each against a law that the code under test does not compute.

Long work is a generator of cumulative, frozen results with `done` and `total`; nothing is held across a yield, and
closing the generator stops the work.
"""
