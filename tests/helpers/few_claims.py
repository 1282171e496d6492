"""What the Compare page measures of claims, on tiny models and few texts: for tests of how it is shown."""

from specviz.bench import claims, lossy


def few_claims(monkeypatch, target="tiny-target", draft="tiny-draft"):
    """The one pair, in full and as the one poor case, and the least of every kind of text."""
    case = claims.Case("tiny", target, draft, num_tokens=6, in_full=True)
    monkeypatch.setattr(claims, "pairs", lambda: [case])
    monkeypatch.setattr(claims, "poor_cases", lambda: [case])
    monkeypatch.setattr(lossy, "default_pair", lambda: (target, draft))
    for name, value in (("NUM_TOKENS", 32), ("NUM_SUMS", 1), ("MOST_SUM_TOKENS", 8), ("THRESHOLDS", (None, -20.0))):
        monkeypatch.setattr(lossy, name, value)
