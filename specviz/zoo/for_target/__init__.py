"""Drafts for a model of your own: `python -m specviz.zoo.for_target dialogues | text | eagle | draft | evaluate |
ship`.

The model writes dialogues with itself, or the alignment lab has exported its texts (rows). What it says at each place
of them is kept (store); a head or a draft model learns it, fresh (eagle3, small_draft) or your own (own), and is
measured on texts that it has never seen (evaluate)."""
