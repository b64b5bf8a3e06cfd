"""Made-up content for every feature that TFDS has; each example is a function of (seed, split, index) alone.

    draft.py    one example while it is made, and the place of a feature in it
    scene.py    what the example shows: a few shapes whose hue and form follow its label
    words.py    names, sentences, texts
    visuals.py  how images, masks and boxes are filled
    values.py   how classes, texts, numbers and sound are filled
    example.py  ExampleMaker: a dataset's features, each with its way to be filled
    content.py  what the builder writes, from TFDS's own builder of the dataset

The last four import TFDS: only the process that builds imports them.
"""
