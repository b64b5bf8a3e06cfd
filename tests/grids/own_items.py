"""A map-style dataset of one's own for the grids: images of many sizes, and classes of 1 to 47 examples."""

from typing import Any

from PIL import Image

NUM_ITEMS = 83  # A prime number.


class OwnItems:
    """Items by number; what each of them is follows from its number."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, number: int) -> dict[str, Any]:
        image = Image.new("RGB", size_of_item(number), (number, 90, 30))
        return {"image": image, "label": label_of_item(number), "content": f"item {number}"}


def label_of_item(number: int) -> int:
    """Returns the class of an item."""
    return sum(number * 11 % NUM_ITEMS >= first for first in (1, 9, 36))


def size_of_item(number: int) -> tuple[int, int]:
    """Returns width and height of an item's image, which no other item has."""
    return 8 + number % 9, 8 + number // 9
