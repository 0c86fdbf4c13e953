"""Builds a font that draws every character as the same box, so that a page looks the same on every
machine.
"""

from __future__ import annotations

import base64
from io import BytesIO

UNITS_PER_EM = 1000
ADVANCE = 550  # about the mean width of a letter
ASCENT, DESCENT = 800, -200
# The width of a letter without its spacing, and the height of an x.
BOX = ((60, 0), (490, 0), (490, 500), (60, 500))

USE_FONT = """
const done = arguments[2];
const bytes = Uint8Array.from(atob(arguments[0]), (character) => character.charCodeAt(0));
new FontFace(arguments[1], bytes).load().then((font) => {
  document.fonts.add(font);
  for (const name of ["--sans", "--mono"]) document.documentElement.style.setProperty(name, arguments[1]);
  document.fonts.ready.then(() => requestAnimationFrame(() => done(true)));
});
"""
FAMILY = "Boxes"


def build_font(characters: str) -> bytes:
    """Return a TrueType font in which each of the characters is a box, and a space is empty."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    box, empty = TTGlyphPen(None), TTGlyphPen(None)
    box.moveTo(BOX[0])
    for point in BOX[1:]:
        box.lineTo(point)
    box.closePath()
    outline = box.glyph()
    builder = FontBuilder(UNITS_PER_EM, isTTF=True)
    builder.setupGlyphOrder([".notdef", "space", "box"])
    builder.setupCharacterMap(
        {ord(character): "space" if character.isspace() else "box" for character in characters}
    )
    builder.setupGlyf({".notdef": outline, "space": empty.glyph(), "box": outline})
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", "space", "box"), (ADVANCE, 0)))
    builder.setupHorizontalHeader(ascent=ASCENT, descent=DESCENT)
    builder.setupNameTable({"familyName": FAMILY, "styleName": "Regular"})
    builder.setupOS2(
        sTypoAscender=ASCENT, sTypoDescender=DESCENT, usWinAscent=ASCENT, usWinDescent=-DESCENT
    )
    builder.setupPost()
    data = BytesIO()
    builder.save(data)
    return data.getvalue()


def encode_font(characters: str) -> str:
    """Return the font in base64, as USE_FONT takes it."""
    return base64.b64encode(build_font(characters)).decode()
