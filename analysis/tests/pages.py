"""Reads a report strictly: what a browser would mend is an error here."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


@dataclass
class Figure:
    """What a <figure> says. `labels` are its axis labels, by the id that the drawing gave them."""

    title: str = ""
    caption: str = ""
    role: str = ""
    aria_label: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class Page:
    """`targets` are the ids that links and drawings refer to, `external` what they fetch from elsewhere."""

    ids: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    external: list[str] = field(default_factory=list)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        assert len(found) == len(attributes), f"<{tag}> has an attribute twice"
        self._references(tag, found)
        if "id" in found:
            self.page.ids.append(found["id"])
        if tag not in VOID:
            self.open.append((tag, found.get("id", "")))
        if tag == "figure":
            self.page.figures.append(Figure())
        if tag == "svg":
            self.page.figures[-1].role = found.get("role", "")
            self.page.figures[-1].aria_label = found.get("aria-label", "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop()[0] == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        if not data.strip():
            return
        tags = [tag for tag, _ in self.open]
        if tags[-1:] == ["style"]:
            self.page.external += re.findall(r"@import|url\((?!#)[^)]*", data)
        if "figure" not in tags:
            return
        figure = self.page.figures[-1]
        if tags[-1] == "h4":
            figure.title += data
        elif "figcaption" in tags:
            figure.caption += data
        for _, identity in self.open:
            if match := re.search(r"[xy]-label-\d+$", identity):
                figure.labels[match[0]] = figure.labels.get(match[0], "") + data

    def _references(self, tag: str, found: dict[str, str]) -> None:
        assert tag not in ("script", "iframe", "object", "embed", "img", "image"), f"<{tag}>"
        for name, value in found.items():
            assert not name.startswith("on"), f"{name} on <{tag}>"
            if name in ("href", "xlink:href", "src", "srcset", "action"):
                if value.startswith("#"):
                    self.page.targets.append(value[1:])
                elif (tag, value) != ("link", "data:,"):
                    self.page.external.append(value)
            self.page.targets += re.findall(r"url\(#([^)]+)\)", value)
            self.page.external += re.findall(r"url\((?!#)[^)]*", value)


def parse(text: str) -> Page:
    """Fails where tags do not match, and where something would run or be fetched."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.page.external == []
    return parser.page
