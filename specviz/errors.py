"""The one exception whose message is meant for the person at the screen."""


class SpecvizError(Exception):
    """What is wrong, what was got and what is allowed, in words a person can act on."""


class CannotTell(SpecvizError):
    """A measurement that was made and does not carry an answer."""
