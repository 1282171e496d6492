"""The tests of specviz; `tests.helpers` holds what they share."""
