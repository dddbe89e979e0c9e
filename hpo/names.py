"""Names of parameters, metrics, tags and workers, as they stand in logs and on pages.

No control character, no line break, and no sign that turns or hides the text around it. The rule
lists code points, so it does not change with the Unicode tables of a Python or of a client.
"""

from __future__ import annotations

import re

# Written as Python, ECMAScript and Rust read it alike: the OpenAPI document says it, too.
NAME = re.compile(
    r"[^\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]+"
)


def is_printable(text: str) -> bool:
    """Whether a text that is not empty has printable characters only."""
    return NAME.fullmatch(text) is not None
