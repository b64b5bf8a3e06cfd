"""The peers: each module is a script that runs one, and says how that is configured."""
