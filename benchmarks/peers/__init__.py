"""The competitors: each module describes its configuration. Packages of others are imported inside functions."""
