"""What a browser would make of a page: its elements, attributes, texts and scripts."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Reads a page.

    Attributes:
        found: Each element, with its attributes.
        scripts: Each script, with its attributes and text.
        texts: What is neither script nor style.
        open: Elements that nothing closed.
        crossed: Ends of elements that are not the innermost open one.
    """

    def __init__(self, page: str) -> None:
        """Read it."""
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.feed(page)
        self.close()

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.found]

    @property
    def attributes(self) -> set[str]:
        return {name for _, attributes in self.found for name in attributes}

    def values(self, *names: str) -> list[str]:
        """The values of attributes, in order."""
        return [value or "" for _, attributes in self.found for name, value in attributes.items() if name in names]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()
        else:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            about, text = self.scripts[-1]
            self.scripts[-1] = (about, text + data)
        elif self.cdata_elem is None:
            self.texts.append(data)
