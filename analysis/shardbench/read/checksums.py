"""The sums by which a file vouches for its contents (SCHEMA.md). Pure."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from zlib import crc32

from shardbench.read.text import DAMAGED, raw


def checksum_problems(
    facts: Mapping[str, Any], sums: Mapping[str, int], wanted: Collection[str]
) -> Iterator[str]:
    """How the contents deviate from the sums that the writer added when it closed the file (SCHEMA.md)."""
    attributes = dict(facts["attributes"])
    stored = attributes.pop("checksums", None)
    if stored is None:
        # A run that was killed could not vouch for its file, which is incomplete anyhow.
        if attributes["status"] == "complete":
            yield "no root attribute 'checksums': damaged, or written by an older version; repeat the run"
        return
    try:
        written = json.loads(stored)
        expected = {("root attributes", ""): written["attributes"], ("dataset", "config"): written["config"]}
        expected |= {("dataset", name): value for name, value in written["tables"].items() if name in wanted}
    except (ValueError, TypeError, KeyError, AttributeError):
        yield f"root attribute 'checksums' cannot be understood, {DAMAGED}"
        return
    found = {
        ("root attributes", ""): _attributes_sum(attributes),
        ("dataset", "config"): crc32(raw(facts["config"])),
    }
    found |= {("dataset", name): value for name, value in sums.items()}
    for kind, name in sorted(expected.keys() | found.keys()):
        if expected.get((kind, name)) != found.get((kind, name)):
            subject = f"{kind} '{name}'" if name else kind
            yield f"the checksum of {subject} is not the one stored when the file was closed, {DAMAGED}"


def _attributes_sum(attributes: Mapping[str, str | int | float | None]) -> int:
    texts = {
        raw(name): raw(format(value, ".17g") if isinstance(value, float) else str(value))
        for name, value in attributes.items()
    }
    return crc32(b"".join(name + b"\0" + texts[name] + b"\0" for name in sorted(texts)))


def layout_sum(layout: Mapping[str, Any]) -> int:
    """With what a table's sum begins."""
    columns = zip(layout["names"], layout["formats"], layout["offsets"])
    lines = [f"{name} {kind} {offset}\n" for name, kind, offset in columns]
    return crc32(raw("".join([*lines, f"{layout['itemsize']}\n"])))
