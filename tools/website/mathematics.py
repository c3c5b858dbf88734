"""Formulas: LaTeX in the Markdown becomes MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def typeset(page: str) -> str:
    """Return a page with its formulas as MathML.

    Args:
        page: The HTML that Markdown and arithmatex made.
    """
    page = INLINE.sub(lambda found: convert(html.unescape(found[1])), page)
    return BLOCK.sub(lambda found: _block(html.unescape(found[1])), page)


def _block(formula: str) -> str:
    return f'<div class="formula">{convert(formula, display="block")}</div>'
