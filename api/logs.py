"""Log lines on standard error: text for people, JSON for machines, both with the request's id."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

from api.request_ids import REQUEST_ID

TEXT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


class JsonFormatter(logging.Formatter):
    """One object on each line; the facts of a record that has some are members of their own."""

    def format(self, record: logging.LogRecord) -> str:
        time = dt.datetime.fromtimestamp(record.created, dt.UTC)
        members: dict[str, Any] = {
            **getattr(record, "facts", {}),
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, default=str)


FORMATTERS = {"text": lambda: logging.Formatter(TEXT), "json": JsonFormatter}


def set_up_logs(form: str, *, level: int) -> None:
    """Makes the whole process log to standard error in one of the formats."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form]())
    handler.addFilter(_add_request_id)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it greets at every start


def _add_request_id(record: logging.LogRecord) -> bool:
    record.request_id = REQUEST_ID.get() or "-"
    return True
