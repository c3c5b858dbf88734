"""The API reference: docs/api.md names every public name, and each section becomes a page.

A page has the section's own text and then the docstring of each name.
"""

import re
from dataclasses import dataclass, field

MODULE = re.compile(r"^`from ([\w.]+) import …`")
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|")
NAME = re.compile(r"`(\w+)`")


@dataclass
class Section:
    """One section of docs/api.md.

    Attributes:
        title: Its heading.
        text: Its Markdown, in which each name is a link to its docstring.
        names: Its names with the module that they are imported from.
    """

    title: str
    text: str = ""
    names: list[str] = field(default_factory=list)

    @property
    def page(self) -> str:
        """The path of its page below docs/."""
        return f"api/{re.sub(r'[^a-z0-9]+', '-', self.title.lower())}.md"

    @property
    def reference(self) -> str:
        """The Markdown of its page."""
        docstrings = "\n".join(f"::: {name}\n" for name in self.names)
        return f"# {self.title}\n{self.text}\n{docstrings}"


def sections(api: str) -> list[Section]:
    """Return the sections of docs/api.md.

    Args:
        api: The text of docs/api.md.
    """
    found: list[Section] = []
    module = ""
    for line in api.splitlines():
        if line.startswith("## "):
            found.append(Section(line.removeprefix("## ")))
            module = ""
            continue
        if not found:
            continue
        imported = MODULE.match(line)
        if imported:
            module = imported[1]
        row = ROW.match(line)
        if row and module:
            names = NAME.findall(row[1])
            found[-1].names += [f"{module}.{name}" for name in names]
            links = ", ".join(f"[`{name}`][{module}.{name}]" for name in names)
            line = line.replace(row[1], links, 1)
        found[-1].text += line + "\n"
    return found
