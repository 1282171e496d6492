"""Stored hidden states of a target that lies elsewhere: `files` reads them, `target` the rest."""
