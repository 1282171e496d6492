"""Drafts for a chat model of your own: `python -m specviz.zoo.for_target dialogues | text | eagle | draft | evaluate |
ship`.

The model writes dialogues with itself; what it says at each place of them is kept (store); an EAGLE-3 head or a small
Llama model learns it (eagle3, small_draft) and is measured on dialogues that it has never seen (evaluate)."""
