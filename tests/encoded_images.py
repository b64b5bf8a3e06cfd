"""Small images in every encoding that is read, some of which Pillow cannot write, and Pillow's pixels of them."""

import functools
import io
import itertools
import re
import struct
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
import pytest
import simplejpeg
from image_writers import bmp_rows, pack_samples, png_chunk, run_lengths, write_bmp, write_png, write_tiff
from numpy.typing import NDArray
from PIL import Image, features

from tfds_torch.images.decoders import turbojpeg
from tfds_torch.images.decoding import ImageDecoder, Pixels

HAS_TURBOJPEG = turbojpeg.find().library is not None
JPEG_DECODERS = [
    pytest.param("turbojpeg", marks=pytest.mark.skipif(not HAS_TURBOJPEG, reason="needs libturbojpeg 3")),
    pytest.param("simplejpeg"),
    pytest.param("pillow"),
]
"""What `jpeg_decoder` can be here."""

SIZE = (45, 37)
"""Width and height, neither of which fills the blocks of a JPEG."""


@functools.cache
def photograph(size: tuple[int, int] = SIZE) -> Image.Image:
    """Returns a photograph as RGB, of (width, height), without metadata."""
    with resources.files("tfds_torch").joinpath("demo", "data", "china.jpg").open("rb") as file:
        image = Image.open(file).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    image.info.clear()
    return image


def save(image: Image.Image, file_format: str, **options: object) -> bytes:
    """Returns an image as Pillow writes it."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def decode(image: bytes, mode: str | None = "RGB", shrink: int = 1, jpeg_decoder: str = "auto") -> Pixels:
    """Returns an image's pixels as an ImageDecoder decodes them."""
    decoder = ImageDecoder(mode, jpeg_decoder=jpeg_decoder)
    return decoder.decode(image, decoder.read_header(image), shrink=shrink)


def stored_mode(image: bytes, mode: str | None) -> str:
    """Returns the mode of decoded pixels, where None stands for that of the image."""
    decoder = ImageDecoder(mode)
    return mode or {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[decoder.num_channels(decoder.read_header(image))]


def with_alpha(image: Image.Image) -> Image.Image:
    """Returns an image whose opacity changes from left to right."""
    image = image.convert("LA" if image.mode == "L" else "RGBA")
    across = np.linspace(0, 255, image.width)[None] * np.ones((image.height, 1))
    image.putalpha(Image.fromarray(across.astype(np.uint8)))
    return image


def pillow_pixels(encoded: bytes, mode: str) -> NDArray[np.uint8]:
    """Returns Pillow's pixels of an encoded image, uint8 [h, w, C]; the upper 8 bits of 16."""
    image: Image.Image = Image.open(io.BytesIO(encoded))
    image.load()
    if image.mode.startswith("I"):  # Pillow makes 255 of everything above.
        spare = 4 if encoded == encoded_images()["tiff grey 12 bit"] else 8
        image = Image.fromarray((np.asarray(image) >> spare).astype(np.uint8))
    if image.mode in ("RGBa", "La", "LAB"):  # Pillow converts it to one mode only.
        image = image.convert({"RGBa": "RGBA", "La": "LA", "LAB": "RGB"}[image.mode])
    if mode != "RGBA":
        image.info.pop("transparency", None)  # Pillow warns that it is dropped.
    pixels = np.asarray(image.convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


# PNG


def _palette(num_colors: int) -> NDArray[np.uint8]:
    return np.random.default_rng(num_colors).integers(0, 256, (num_colors, 3), np.uint8)


def _png_images() -> dict[str, bytes]:
    image = photograph()
    rgb = np.asarray(image).astype(np.uint16)
    gray = np.asarray(image.convert("L")).astype(np.uint16)[..., None]
    alpha = np.asarray(with_alpha(image)).astype(np.uint16)[..., 3:]
    low_bits = np.uint16(0x5A)
    images = {
        "png grey": save(image.convert("L"), "PNG"),
        "png grey alpha": save(with_alpha(image.convert("L")), "PNG"),
        "png rgb": save(image, "PNG"),
        "png rgba": save(with_alpha(image), "PNG"),
        "png palette": save(image.quantize(200), "PNG"),
        "png grey with a transparent colour": save(image.convert("L"), "PNG", transparency=int(gray[3, 4, 0])),
        "png rgb with a transparent colour": save(image, "PNG", transparency=tuple(rgb[3, 4].tolist())),
        "png palette with a transparent colour": save(image.quantize(200), "PNG", transparency=7),
        "png palette with alpha": save(image.quantize(200), "PNG", transparency=bytes(range(0, 200, 2))),
        "png grey 16 bit": write_png(gray << 8 | low_bits, 0, 16),
        "png grey alpha 16 bit": write_png(np.concatenate([gray, alpha], -1) << 8 | low_bits, 4, 16),
        "png rgb 16 bit": write_png(rgb << 8 | low_bits, 2, 16),
        "png rgba 16 bit": write_png(np.concatenate([rgb, alpha], -1) << 8 | low_bits, 6, 16),
        "png rgb interlaced": write_png(rgb, 2, 8, interlaced=True),
        "png rgba interlaced": write_png(np.concatenate([rgb, alpha], -1), 6, 8, interlaced=True),
        "png grey 16 bit interlaced": write_png(gray << 8 | low_bits, 0, 16, interlaced=True),
        "png with gamma": write_png(rgb, 2, 8, [png_chunk(b"gAMA", struct.pack(">I", 20_000))]),
        "png of one pixel": save(photograph((1, 1)), "PNG"),
        "png larger": save(photograph((200, 150)), "PNG"),
    }
    for bit_depth, interlaced in itertools.product((1, 2, 4), (False, True)):
        suffix = f"{bit_depth} bit" + " interlaced" * interlaced
        plte = png_chunk(b"PLTE", _palette(1 << bit_depth).tobytes())
        images[f"png grey {suffix}"] = write_png(gray >> (8 - bit_depth), 0, bit_depth, interlaced=interlaced)
        images[f"png palette {suffix}"] = write_png(gray >> (8 - bit_depth), 3, bit_depth, [plte], interlaced)
    return images


# JPEG


def _with_adobe_transform(image: bytes, transform: int) -> bytes:
    """Returns a JPEG whose Adobe segment tells other colours: 0 RGB or CMYK, 1 YCbCr, 2 YCCK."""
    position = image.index(b"\xff\xee\x00\x0eAdobe")
    return image[: position + 15] + bytes([transform]) + image[position + 16 :]


def _without_adobe(image: bytes) -> bytes:
    position = image.index(b"\xff\xee\x00\x0eAdobe")
    return image[:position] + image[position + 16 :]


def _jpeg_images() -> dict[str, bytes]:
    image = photograph()
    gray, pixels = image.convert("L"), np.ascontiguousarray(image)
    cmyk = save(image.convert("CMYK"), "JPEG", quality=92)
    images = {
        "jpeg baseline": save(image, "JPEG"),
        "jpeg progressive": save(image, "JPEG", quality=92, progressive=True),
        "jpeg restart markers": save(image, "JPEG", quality=92, restart_marker_blocks=1),
        "jpeg progressive restart markers": save(image, "JPEG", progressive=True, restart_marker_rows=1),
        "jpeg progressive without its last scans": first_scans(save(image, "JPEG", progressive=True), 4),
        "jpeg rgb": save(image, "JPEG", quality=92, keep_rgb=True),
        "jpeg grey": save(gray, "JPEG", quality=92),
        "jpeg grey progressive": save(gray, "JPEG", quality=92, progressive=True),
        "jpeg cmyk": cmyk,
        "jpeg cmyk without Adobe's mark": _without_adobe(cmyk),
        "jpeg ycck": _with_adobe_transform(cmyk, 2),
        "jpeg larger": save(photograph((320, 213)), "JPEG", quality=90),
        "jpeg behind a comment": behind_start(save(image, "JPEG"), jpeg_segment(0xFE, b"a comment")),
        "jpeg with junk between segments": _with_junk(save(image, "JPEG")),
        "jpeg with junk at its end": save(image, "JPEG") + b"junk",
        "jpeg rotated by EXIF": save(image, "JPEG", exif=_rotated()),
    }
    for subsampling in ("444", "422", "420", "440", "411"):
        images[f"jpeg {':'.join(subsampling)}"] = simplejpeg.encode_jpeg(pixels, 92, colorsubsampling=subsampling)
    for width, height in ((1, 1), (7, 3), (8, 8), (9, 17), (16, 31), (33, 16)):
        images[f"jpeg {width} by {height}"] = save(photograph((width, height)), "JPEG", quality=92)
    return images


def jpeg_segment(marker: int, payload: bytes) -> bytes:
    """Returns a segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def first_scans(image: bytes, num_scans: int) -> bytes:
    """Returns a progressive JPEG without its other scans: well-formed, as one that was saved before they came."""
    starts = [found.start() for found in re.finditer(rb"\xff\xda", image)]
    return image[: starts[num_scans]] + b"\xff\xd9" if num_scans < len(starts) else image


def behind_start(image: bytes, inserted: bytes) -> bytes:
    """Returns a JPEG with bytes inserted behind its first marker."""
    return image[:2] + inserted + image[2:]


def _with_junk(image: bytes) -> bytes:
    position = image.index(b"\xff\xdb")
    return image[:position] + b"\0junk" + image[position:]


def _rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


# GIF, BMP, WebP


def _bmp_images() -> dict[str, bytes]:
    image = photograph()
    pixels, gray = np.asarray(image), np.asarray(image.convert("L"))
    bgr = bmp_rows(line.tobytes() for line in pixels[..., ::-1])
    bgra = bmp_rows(line.tobytes() for line in np.asarray(with_alpha(image))[..., [2, 1, 0, 3]])
    runs = [run_lengths(line) for line in gray[::-1]]
    fives = (pixels >> 3).astype("<u2")
    words = fives[..., 0] << 10 | fives[..., 1] << 5 | fives[..., 2]
    palettes = {
        num_bits: np.concatenate([_palette(1 << num_bits), np.zeros((1 << num_bits, 1), np.uint8)], -1).tobytes()
        for num_bits in (1, 4, 8)
    }
    packed = {
        num_bits: bmp_rows(pack_samples(line[:, None] >> (8 - num_bits), num_bits) for line in gray.astype(np.uint16))
        for num_bits in (1, 4, 8)
    }
    width = image.width
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    return {
        "bmp 24 bit": save(image, "BMP"),
        "bmp 24 bit from the top down": write_bmp(bgr[::-1], width, 24, top_down=True),
        "bmp 24 bit of OS/2": write_bmp(bgr, width, 24, old=True),
        "bmp 32 bit": write_bmp(bgra, width, 32),
        "bmp 32 bit with alpha": write_bmp(bgra, width, 32, masks=masks),
        "bmp 32 bit without alpha": write_bmp(bgra, width, 32, masks=masks[:12] + bytes(4)),
        "bmp 16 bit": write_bmp(bmp_rows(line.tobytes() for line in words), width, 16),
        "bmp run lengths": write_bmp(runs, width, 8, palette=palettes[8], compressed=True),
        "bmp grey": save(image.convert("L"), "BMP"),
        "bmp black and white": save(image.convert("1"), "BMP"),
        "bmp quantized": save(image.quantize(200), "BMP"),
        **{f"bmp palette {bits} bit": write_bmp(packed[bits], width, bits, palette=palettes[bits]) for bits in packed},
    }


def _gif_images() -> dict[str, bytes]:
    image = photograph()
    frames = [image.quantize(64), image.transpose(Image.Transpose.ROTATE_180).quantize(64)]
    return {
        "gif": save(frames[0], "GIF"),
        "gif grey": save(image.convert("L"), "GIF"),
        "gif interlaced": save(frames[0], "GIF", interlace=1),
        "gif with a transparent colour": save(frames[0], "GIF", transparency=5),
        "gif animated": save(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "gif frame beyond the screen": _with_small_screen(save(frames[0], "GIF")),
    }


def _with_small_screen(image: bytes) -> bytes:
    return image[:6] + struct.pack("<HH", 5, 5) + image[10:]


def _webp_images() -> dict[str, bytes]:
    image = photograph()
    other = image.transpose(Image.Transpose.ROTATE_180)
    return {
        "webp lossy": save(image, "WEBP", quality=80),
        "webp lossless": save(image, "WEBP", lossless=True),
        "webp lossy with alpha": save(with_alpha(image), "WEBP", quality=80),
        "webp lossless with alpha": save(with_alpha(image), "WEBP", lossless=True),
        "webp animated": save(image, "WEBP", save_all=True, append_images=[other], lossless=True),
    }


# What Pillow alone reads


def _tiff_images() -> dict[str, bytes]:
    image, (width, height) = photograph(), SIZE
    other = image.transpose(Image.Transpose.ROTATE_180)
    grey, pixels = image.convert("L"), np.asarray(image)
    deep = Image.fromarray((np.asarray(grey).astype(np.uint16) << 8) | 0x7F)
    big_endian = Image.frombytes("I;16B", SIZE, np.asarray(deep).astype(">u2").tobytes())
    size: dict[int, int | tuple[int, ...]] = {256: width, 257: height, 259: 1}
    padded = np.zeros((48, 48, 3), np.uint8)
    padded[:height, :width] = pixels
    tiles = [padded[top : top + 16, left : left + 16].tobytes() for top in (0, 16, 32) for left in (0, 16, 32)]
    of_tiles = {**size, 258: (8, 8, 8), 262: 2, 277: 3, 322: 16, 323: 16}
    planes = [pixels[..., channel].tobytes() for channel in range(3)]
    of_planes = {**size, 258: (8, 8, 8), 262: 2, 277: 3, 278: height, 284: 2}
    colours_16 = {**size, 258: (16, 16, 16), 262: 2, 277: 3, 278: height}
    of_12 = {**size, 258: 12, 262: 1, 277: 1, 278: height}
    return {
        "tiff rgb": save(image, "TIFF"),
        "tiff rgb lzw": save(image, "TIFF", compression="tiff_lzw"),
        "tiff rgb deflated": save(image, "TIFF", compression="tiff_adobe_deflate"),
        "tiff rgb big": save(image, "TIFF", big_tiff=True),
        "tiff rgb jpeg": save(image, "TIFF", compression="jpeg", quality=90),
        "tiff rgb tiled": write_tiff(tiles, of_tiles, is_tiled=True),
        "tiff rgb in planes": write_tiff(planes, of_planes),
        "tiff rgb 16 bit": write_tiff([((pixels.astype("<u2") << 8) | 0x7F).tobytes()], colours_16),
        "tiff of two pages": save(image, "TIFF", save_all=True, append_images=[other]),
        "tiff rgba": save(with_alpha(image), "TIFF"),
        "tiff cmyk": save(image.convert("CMYK"), "TIFF"),
        "tiff lab": write_tiff([pixels.tobytes()], {**size, 258: (8, 8, 8), 262: 8, 277: 3, 278: height}),
        "tiff grey": save(grey, "TIFF"),
        "tiff grey alpha": save(with_alpha(image).convert("LA"), "TIFF"),
        "tiff grey 16 bit": save(deep, "TIFF"),
        "tiff grey 16 bit big endian": save(big_endian, "TIFF"),
        "tiff grey 12 bit": write_tiff([_pack_12_bits(np.asarray(deep) >> 4)], of_12),
        "tiff black and white": save(image.convert("1"), "TIFF"),
        "tiff black and white fax": save(image.convert("1"), "TIFF", compression="group4"),
        "tiff palette": save(image.quantize(64), "TIFF"),
    }


def _pack_12_bits(levels: NDArray[Any]) -> bytes:
    """Returns rows of levels of 12 bits, each filled up to a byte."""
    rows = []
    for line in levels:
        bits = "".join(f"{level:012b}" for level in line.tolist())
        bits += "0" * (-len(bits) % 8)
        rows.append(int(bits, 2).to_bytes(len(bits) // 8, "big"))
    return b"".join(rows)


def _other_images() -> dict[str, bytes]:
    image, (width, height) = photograph(), SIZE
    grey = image.convert("L")
    deep = (np.asarray(grey).astype(np.uint16) << 8) | 0x7F
    head = f"{width} {height}\n".encode()
    seven = np.asarray(grey) >> 5
    plain = b"P2 # by hand\n" + head + b"255\n" + b" ".join(b"%d" % level for level in np.asarray(grey).flat)
    has_avif = "avif" in features.modules and features.check("avif")  # Of Pillow 11.3 and later.
    avif = {"avif": image, "avif with alpha": with_alpha(image)} if has_avif else {}
    return {
        **{name: save(one, "AVIF", quality=80) for name, one in avif.items()},
        "j2k": save(image, "JPEG2000"),
        "j2k lossy": save(image, "JPEG2000", irreversible=True, quality_mode="dB", quality_layers=[35]),
        "j2k codestream": save(image, "JPEG2000", no_jp2=True),
        "j2k with alpha": save(with_alpha(image), "JPEG2000"),
        "j2k grey": save(grey, "JPEG2000"),
        "j2k grey 16 bit": save(Image.fromarray(deep), "JPEG2000"),
        "ppm": save(image, "PPM"),
        "ppm grey": save(grey, "PPM"),
        "ppm grey 16 bit": b"P5\n" + head + b"65535\n" + deep.astype(">u2").tobytes(),
        "ppm grey of 8 levels": b"P5\n" + head + b"7\n" + seven.tobytes(),
        "ppm grey as text": plain + b"\n",
        "ppm black and white": save(image.convert("1"), "PPM"),
    }


@functools.cache
def encoded_images() -> Mapping[str, bytes]:
    """Returns name -> encoded image: a name begins with its format. Pillow can read all of them."""
    return {
        **_jpeg_images(),
        **_png_images(),
        **_gif_images(),
        **_bmp_images(),
        **_webp_images(),
        **_tiff_images(),
        **_other_images(),
    }
