"""Exact inverses of the faults that converters, configurations and training programs make.

Each module yields families of undos for one sort of fault. What no inverse is known for (noise, another revision) has
none here.
"""
