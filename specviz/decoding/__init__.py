"""The tour: speculative decoding in ten lines.

    text = prompt
    until the text is long enough, an end token comes or the context is full:   # engine.py, speculate()
        draft = drafter.draft(text, K)      # tokens, each with the distribution q that it was drawn from: draft.py
        p = target.forward(text, draft)     # one call, the distribution behind each: cached_lm.py, sampling.py
        walk down the draft from the text:
            accept a token with probability min(1, p/q)                         # rules/speculative_sampling.py
            at the first rejection write a token from norm(max(0, p - q)), stop
        if none was rejected: write a bonus token from the last p
        text += the accepted tokens, and the token behind them                  # rule.py, Verdict

The engine knows token ids and tensors: no text, file, screen or name of a method. All randomness comes from draws.py,
where each draw has an address. Enumeration over every draw gives the exact distribution of a text.
How a model is run on each kind of hardware stands in forward/: CPU products, CUDA graphs, and a proof of each model.

Add a method: one file in drafters/ with a Drafter (drafter.py here) and its METHOD, one line in METHODS. Its top
imports no torch: what needs torch is imported in a function, or is another file of the method's folder.
Add a rule: a class in rules/, as in rules/lossy.py, and one entry in rules/facts.py.
"""
