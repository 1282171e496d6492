"""Models that are served elsewhere: a pair behind two addresses, without weights on this machine."""
