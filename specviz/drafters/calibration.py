"""Calibration: how often tokens are accepted, by the probability that the draft gave them.

It is learned from a text's own verdicts while the text is written. It knows no model, and loads no torch.
"""

BINS = 10  # of equal width, from 0 to 1
WEIGHT = 4.0  # tokens


class Calibration:
    """Counts of judged and accepted tokens, by bins of the draft's probability.

    A bin begins as if it had judged WEIGHT tokens, accepted as often as the draft's probability says. The rate of all
    tokens begins at 1/2, as if one of two had been accepted.
    """

    def __init__(self) -> None:
        self._judged = [0] * BINS
        self._accepted = [0] * BINS

    @property
    def rate(self) -> float:
        """The estimated acceptance of a token that is not drafted yet."""
        return (1 + sum(self._accepted)) / (2 + sum(self._judged))

    def estimate(self, probability: float) -> float:
        """The estimated acceptance of a token behind accepted ones. probability: what the draft gave this token."""
        place = bin_of(probability)
        accepted = self._accepted[place] + WEIGHT * probability
        return accepted / (self._judged[place] + WEIGHT)

    def learn(self, probability: float, accepted: bool) -> None:
        """Takes the verdict on a judged token."""
        place = bin_of(probability)
        self._judged[place] += 1
        self._accepted[place] += accepted


def bin_of(share: float) -> int:
    """The bin of a number from 0 to 1."""
    return min(int(share * BINS), BINS - 1)
