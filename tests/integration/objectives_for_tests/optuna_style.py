"""An objective as it stands in Optuna's tutorials: nothing in it knows of this service."""

import optuna


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -10, 10)
    for step in range(10):
        intermediate = (x - 2) ** 2 + 10 - step
        trial.report(intermediate, step)
        if trial.should_prune():
            trial.set_user_attr("pruned_at", step)
            raise optuna.TrialPruned()
    return (x - 2) ** 2
