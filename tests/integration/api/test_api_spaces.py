"""Spaces over REST on both databases: conditions, arrays and objects as choices, constants."""

from __future__ import annotations

import optuna
import sqlalchemy as sa
from starlette.testclient import TestClient

from tests.api_kit import Node, read

SPACE = {
    "kind": {"type": "categorical", "choices": ["adam", "sgd"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"kind": ["sgd"]}},
    "widths": {"type": "categorical", "choices": [[64], [64, 32], {"blocks": 2}]},
    "batch": {"type": "constant", "value": 128},
}


def test_a_trial_has_the_parameters_whose_conditions_hold(client: TestClient, node: Node) -> None:
    study = node.launch(space=SPACE, n_trials=12, sampler="tpe", seed=3)
    assert study["space"]["momentum"]["when"] == {"kind": ["sgd"]}
    assert study["space"]["batch"] == {"type": "categorical", "choices": [128]}
    kinds = set()
    for _ in range(12):
        claim = node.claim()
        params = claim["params"]
        kinds.add(params["kind"])
        assert ("momentum" in params) == (params["kind"] == "sgd")
        assert params["widths"] in SPACE["widths"]["choices"]
        assert params["batch"] == 128
        refused = node.send(
            claim, "suggest", name="momentum", parameter={"type": "float", "low": 0, "high": 1}
        )
        if params["kind"] == "adam":
            assert "does not hold" in read(refused)["detail"]
        node.send(claim, "complete", value=len(str(params["widths"])))
    assert kinds == {"adam", "sgd"}
    path = f"/v1/studies/{study['name']}"
    best = read(client.get(f"{path}/best"))
    assert best["params"]["widths"] == {"blocks": 2}
    listed = read(client.get(f"{path}/trials"))["items"]
    assert listed[best["number"]]["params"] == best["params"]
    # What a reply shows can be sent again: the same study.
    fields = ("name", "objective", "direction", "space", "seed", "sampler")
    again = {field: study[field] for field in fields} | {"n_trials": 12}
    assert client.post("/v1/studies", json=again).status_code == 200


def test_an_objective_may_suggest_arrays(client: TestClient, node: Node) -> None:
    study = node.launch(space=..., n_trials=1)
    claim = node.claim()
    parameter = {"type": "categorical", "choices": [[1, 2], [3]]}
    values = [
        read(node.send(claim, "suggest", name="shape", parameter=parameter))["value"]
        for _ in range(2)
    ]
    assert values[0] == values[1]
    assert values[0] in parameter["choices"]
    node.send(claim, "complete", value=1.0)
    best = read(client.get(f"/v1/studies/{study['name']}/best"))
    assert best["params"] == {"shape": values[0]}


def test_optuna_reads_arrays_as_labels(client: TestClient, node: Node) -> None:
    study = node.launch(space=SPACE, n_trials=1)
    node.send(node.claim(), "complete", value=1.0)
    url = client.app.state.service.store._database.url.render_as_string(hide_password=False)
    stock = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": sa.pool.NullPool})
    loaded = optuna.load_study(study_name=study["name"], storage=stock)
    label = loaded.trials[0].params["widths"]
    assert label in ("json:[64]", "json:[64, 32]", 'json:{"blocks": 2}')
