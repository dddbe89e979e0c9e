"""One picture: written to a file, or shown by a notebook."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hpo.errors import HpoError, InvalidField
from hpo.files import written_aside

# The newest that JupyterLab shows by itself; vl-convert keeps the older ones.
VERSION = "5.21"
MIME_TYPE = "application/vnd.vegalite.v5+json"
SCALE = 2  # pixels of a PNG for each of the picture's
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body>
<div id="picture"></div>
<script>{scripts}</script>
<script>vegaEmbed("#picture", {spec}, {{actions: false}});</script>
</body>
</html>
"""

Spec = Mapping[str, Any]


class PlotsMissing(HpoError, ImportError):
    """Pictures need vl-convert-python: pip install 'hpo-service[plots]'"""

    code = "missing_extra"


class Picture:
    """A Vega-Lite document (`spec`) that can be written as PNG, SVG or HTML."""

    def __init__(self, title: str, spec: Spec) -> None:
        self.title, self.spec = title, spec

    def __repr__(self) -> str:
        return f"<Picture {self.title}>"

    def save(self, file: Path | str) -> Path:
        """Writes the file its name asks for, whole or not at all. Raises InvalidField."""
        path = checked(Path(file))
        content = SUFFIXES[path.suffix.lower()](self)
        with written_aside(path) as aside:
            aside.write_bytes(content)
        return path

    def png(self) -> bytes:
        """The picture in pixels."""
        drawn: bytes = converter().vegalite_to_png(self.spec, vl_version=VERSION, scale=SCALE)
        return drawn

    def svg(self) -> bytes:
        """The picture in lines."""
        drawn: str = converter().vegalite_to_svg(self.spec, vl_version=VERSION)
        return drawn.encode()

    def html(self) -> bytes:
        """A page that tells of each point under the mouse, and needs nothing from elsewhere."""
        scripts: str = converter().javascript_bundle(vl_version=VERSION)
        # Within a script nothing is escaped for HTML, and choices of a study may hold anything.
        spec = json.dumps(self.spec).replace("<", "\\u003c")
        page = PAGE.format(title=html.escape(self.title), scripts=scripts, spec=spec)
        return page.encode()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """What a notebook picks from: JupyterLab draws the document, others show the pixels."""
        return {MIME_TYPE: self.spec, "image/png": self.png(), "text/plain": repr(self)}


SUFFIXES: dict[str, Callable[[Picture], bytes]] = {
    ".png": Picture.png,
    ".svg": Picture.svg,
    ".html": Picture.html,
}


def checked(path: Path) -> Path:
    """The path, if its name says what is to be written. Raises InvalidField."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidField("file", f"{path.name} must end in {', '.join(SUFFIXES)}")
    return path


def converter() -> ModuleType:
    """The library that draws. Raises PlotsMissing."""
    try:
        import vl_convert
    except ImportError:
        raise PlotsMissing() from None
    return vl_convert
