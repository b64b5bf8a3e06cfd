"""Names, sentences and texts, chosen by the key of a feature."""

import re

import numpy as np

# Some are not ASCII: text is UTF-8, and a reader that forgets it should notice.
_VOCABULARY = """
the a one this that every some no old new small large quiet bright early late good plain warm cold
river road house garden window table letter story picture market harbour mountain field village station
café façade naïve Zürich jalapeño
teacher friend doctor child painter sailor farmer neighbour writer guest
sees finds brings makes takes opens closes follows leaves remembers describes builds
before after under over beside behind between without within along
morning evening summer winter water light sound colour number question answer reason moment place
"""
_WORDS = _VOCABULARY.split()
_NUM_TOPICAL = 6
_PROBABILITY_TOPICAL = 0.3
_LONG_TEXTS = {
    *("text", "review", "reviews", "article", "document", "content", "body", "passage", "context", "story"),
    *("abstract", "paragraph", "paragraphs", "plot", "description"),
}
_NAMES = {"name", "title", "city", "country", "author", "category", "type", "genre", "gender", "state", "color"}


def split_key(key: str) -> list[str]:
    """Returns the words of a feature's key: `image/fileName` -> image, file, name."""
    separated = re.sub(r"([a-z])([A-Z])", r"\1_\2", key).lower()
    return [part for part in re.split(r"[^a-z0-9]+", separated) if part]


def means_file_name(key_words: list[str]) -> bool:
    """Whether a feature with this key holds the name of a file."""
    joined = "".join(key_words)
    return "filename" in joined or "filepath" in joined or "fname" in key_words


def means_id(key_words: list[str]) -> bool:
    """Whether a feature with this key holds an identifier."""
    return bool(key_words) and key_words[-1] in ("id", "ids", "uid", "uuid", "identifier")


def write(key_words: list[str], topic: int, rng: np.random.Generator) -> str:
    """Returns a text as long as such a feature's usually is; some of the words depend on the topic, a label."""
    if _LONG_TEXTS & set(key_words):
        return " ".join(_write_sentence(topic, rng) for _ in range(rng.integers(3, 12)))
    if _NAMES & set(key_words):
        return " ".join(_draw_words(topic, rng, int(rng.integers(1, 3)))).title()
    return _write_sentence(topic, rng)


def _write_sentence(topic: int, rng: np.random.Generator) -> str:
    text = " ".join(_draw_words(topic, rng, int(rng.integers(5, 16))))
    return f"{text[0].upper()}{text[1:]}."


def _draw_words(topic: int, rng: np.random.Generator, count: int) -> list[str]:
    numbers = rng.integers(0, len(_WORDS), size=count)
    is_topical = rng.random(count) < _PROBABILITY_TOPICAL
    numbers = np.where(is_topical, topic * _NUM_TOPICAL + numbers % _NUM_TOPICAL, numbers)
    return [_WORDS[number % len(_WORDS)] for number in numbers]
