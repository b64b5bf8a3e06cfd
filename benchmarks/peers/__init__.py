"""The competitors: each module says what is configured, and why. What others ship is imported inside functions."""
