from tfds_fixtures import cache_home, datasets, ledgers

__all__ = ["cache_home", "datasets", "ledgers"]
