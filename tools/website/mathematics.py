"""Formulas: LaTeX in the Markdown becomes MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
SPACE = '<mspace width="0.17em"/>'
# What latex2mathml does not set as LaTeX does, and how LaTeX does.
CORRECTIONS = [
    # The name of a function is an identifier, with a thin space on a side without a parenthesis.
    (r"<mo>([A-Za-z]{2,})</mo>", r"<mi>\1</mi>"),
    (r"(?<!<msub>)(<mi>[A-Za-z]{2,}</mi>)(?=<m(?!o))", rf"\1{SPACE}"),
    (r"(</mi>|</mn>|&#x00029;</mo>)(?=(?:<msub>)?<mi>[A-Za-z]{2,}</mi>)", rf"\1{SPACE}"),
    # No space around a slash or inside of |x|.
    (r"<mo>&#x0002F;</mo>", '<mo lspace="0" rspace="0">/</mo>'),
    (r"<mo>&#x0007C;</mo>", '<mo stretchy="false" lspace="0" rspace="0">|</mo>'),
    # A minus after an opening parenthesis is a sign.
    (r"((?:&#x00028;|\[)</mo>)<mo>&#x02212;</mo>", r'\1<mo form="prefix">&#x02212;</mo>'),
    # Capital Greek letters are upright; ~ is a relation.
    (r"<mi>(&#x003(?:9[1-9A-F]|A[0-9]);)</mi>", r'<mi mathvariant="normal">\1</mi>'),
    (r"<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),
]


def typeset(page: str) -> str:
    """Return a page with its formulas as MathML.

    Args:
        page: The HTML that Markdown and arithmatex made.
    """
    page = INLINE.sub(lambda found: mathml(html.unescape(found[1])), page)
    return BLOCK.sub(_block, page)


def mathml(latex: str, display: str = "inline") -> str:
    """Return a formula as MathML.

    Args:
        latex: The formula.
        display: "inline" or "block".
    """
    found = convert(latex, display=display)
    for pattern, replacement in CORRECTIONS:
        found = re.sub(pattern, replacement, found)
    return found


def _block(found: re.Match[str]) -> str:
    return f'<div class="formula">{mathml(html.unescape(found[1]), "block")}</div>'
