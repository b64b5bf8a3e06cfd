from image_folder_fixtures import folder, own_folder
from tfds_fixtures import cache_home, datasets, ledgers

__all__ = ["cache_home", "datasets", "folder", "ledgers", "own_folder"]
