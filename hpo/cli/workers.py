"""`hpo workers`: which workers a service knows, and whether they live."""

from __future__ import annotations

from hpo.cli.options import DEFAULT_URL, AsJson, Url


def workers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the workers that have registered, and whether they are heard of.

    `hpo worker` starts one.

    Examples:
      hpo workers
    """
    from hpo.cli.output import console, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        found = client.workers()
    if as_json:
        return print_json(found)
    made = table("worker", "alive", "slots", "devices", "allow", "version", "last seen")
    for worker in found:
        made.add_row(
            worker["name"],
            "yes" if worker["is_alive"] else "no",
            str(worker["slots"]),
            ", ".join(worker["devices"]),
            ", ".join(worker["allow"]),
            worker["version"],
            worker["last_seen_at"][:19].replace("T", " "),
        )
    console().print(made if found else "No worker is registered; start one with: hpo worker")
