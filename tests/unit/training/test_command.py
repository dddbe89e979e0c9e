"""`objectives.command:run` with real programs: reports, ends, and all that programs do wrong."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo.commands import COMMANDS_VARIABLE
from hpo.objective import Trial, TrialFailed, TrialPruned, TrialReleased, descriptor_of
from hpo.trial import Reason, Verdict
from hpo.worker import program
from objectives.command import ProgramFailed, describe, facts_of, run

Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Makes a command named "it" of Python code, of shell code, or of a whole command line."""

    def offer(python: str = "", *, sh: str = "", **given: Any) -> None:
        (tmp_path / "it.py").write_text(python, encoding="utf-8")
        (tmp_path / "it.sh").write_text(sh, encoding="utf-8")
        # Without site-packages Python starts in 15 ms.
        program = ["sh", "it.sh"] if sh else [sys.executable, "-S", "it.py"]
        document = {"run": [*program, "{params}"], **given}
        (tmp_path / "commands.yaml").write_text(json.dumps({"it": document}), encoding="utf-8")
        monkeypatch.setenv(COMMANDS_VARIABLE, str(tmp_path / "commands.yaml"))

    return offer


def test_the_last_report_or_a_final_value_is_the_result(kit: Any, offer: Offer) -> None:
    offer(
        sh="""echo '{"step":0,"value":1.5,"loss":2,"note":"x","ok":true}' text
        echo '{"step":0,"value":1.5,"loss":2,"note":"x","ok":true}'
        printf ' {"step": 2, "value": 3}'"""
    )
    trial, link = kit.trial(command="it")
    assert run(trial) is None
    assert link.values == [(0, 1.5), (2, 3.0)]
    assert link.reports[0].metrics == {"loss": 2.0}
    offer(sh=("""echo '{"value":7}'; echo '{"epoch":4,"value":"x"}'"""))
    with pytest.raises(ValueError, match="must be a number"):
        run(kit.trial(command="it")[0])
    offer(sh=("""echo '{"step":0,"value":7}'; echo '{"value":8}'; echo bye"""))
    assert run(kit.trial(command="it")[0]) == 8.0


def test_names_of_value_and_step_are_the_files_to_say(kit: Any, offer: Offer) -> None:
    line = '{"epoch":1,"acc":0.5,"value":9,"step":8,"loss":1}'
    offer(sh=(f"echo '{line}'"), metric="acc", step="epoch")
    trial, link = kit.trial(command="it")
    run(trial)
    assert link.values == [(1, 0.5)]
    assert link.reports[0].metrics == {"loss": 1.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", math.nan),
        ("null", math.nan),
        ('"NaN"', math.nan),
        ("-Infinity", -math.inf),
        ('"Infinity"', math.inf),
        ("1e999", math.inf),
    ],
)
def test_values_that_are_not_finite_arrive(kit: Any, offer: Offer, text: str, value: float) -> None:
    offer(sh=(f'echo \'{{"step":0,"value":{text}}}\''))
    trial, link = kit.trial(command="it")
    run(trial)
    assert link.reports[0].value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        '{"step":-1,"value":1}',
        '{"step":1.5,"value":1}',
        '{"step":true,"value":1}',
        '{"step":0,"value":"0.5"}',
        '{"step":0,"value":true}',
        '{"step":0,"value":[1]}',
    ],
)
def test_a_report_that_cannot_be_one_is_shown(kit: Any, offer: Offer, line: str) -> None:
    offer(sh=(f"echo '{line}'; sleep 100"))
    with pytest.raises(ValueError, match=r"command 'it': its (step|value) must be .*: \{'step'"):
        run(kit.trial(command="it")[0])


def test_all_other_lines_are_the_log(
    kit: Any, offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["{", '{"step": 0, "val', '{"loss": 1}', "[1]", "{'step': 0, 'value': 1}", "\xff", ""]
    code = f"import sys; sys.stdout.buffer.write({chr(10).join(lines)!r}.encode('latin-1'))"
    offer(code + "; print('{\"value\": 1}', flush=True); print('{\"value\": 2}', file=sys.stderr)")
    trial, link = kit.trial(command="it")
    assert run(trial) == 1.0
    assert link.reports == []
    captured = capsys.readouterr()
    assert captured.out == "\n".join(lines).replace("\xff", "\ufffd")
    assert captured.err == '{"value": 2}\n'


def test_a_report_may_come_in_pieces_but_not_without_end(kit: Any, offer: Offer) -> None:
    endless = program.MAX_LINE_BYTES * 2
    offer(
        sh="printf '{\"step\":0,'; sleep 0.3; printf '\"value\":1}\\n'; "
        f'printf \'{{"step":1,"value":2,"x":"%{endless}s"}}\\n\' \'\'; '
        'echo \'{"step":2,"value":3}\''
    )
    trial, link = kit.trial(command="it")
    run(trial)
    assert link.values == [(0, 1.0), (2, 3.0)]


def test_a_step_twice_is_reported_twice(kit: Any, offer: Offer) -> None:
    offer(sh=("""for v in 1 1 2; do echo '{"step":0,"value":'$v'}'; done"""))
    trial, link = kit.trial(command="it")
    run(trial)
    assert link.values == [(0, 1.0), (0, 1.0), (0, 2.0)]


def test_values_arrive_as_they_are(kit: Any, offer: Offer) -> None:
    hostile = {
        "a": "two words",
        "b": "\"'`$(reboot)`; exit 1 #",
        "c": "--help",
        "d": "ä 十\nsecond line",
        "e": 1e-5,
    }
    offer("import json, sys; json.dump(sys.argv[1:], open('seen', 'w')); print('{\"value\":0}')")
    run(kit.trial(command="it", params=hostile)[0])
    seen = json.loads((Path(os.environ[COMMANDS_VARIABLE]).parent / "seen").read_text())
    assert seen == [*(f"--{name}={hostile[name]}" for name in "abcd"), "--e=1e-05"]


def test_the_environment_tells_of_the_trial_and_of_nothing_else(
    kit: Any, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPO_TOKEN", "secret")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    offer(sh=("env > seen; echo '{\"value\":0}'"), env={"MINE": "a b"})
    full, empty = tmp_path / "attempt-1", tmp_path / "attempt-2"
    full.mkdir()
    empty.mkdir()
    (full / "state").touch()
    trial, _ = kit.trial(command="it", resume_dirs=(empty, full))
    run(trial)
    lines = (tmp_path / "seen").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert {name: text for name, text in seen.items() if name.startswith("HPO_")} == {
        "HPO_CHECKPOINT_DIR": str(trial.checkpoint_dir),
        "HPO_RESUME_DIR": str(full),
        "HPO_SEED": "7",
        "HPO_TRIAL_NUMBER": "0",
        "HPO_ATTEMPT": "1",
        "HPO_STUDY": "tiny",
        "HPO_DEVICE": "cpu",
    }
    assert (seen["MINE"], seen["PYTHONUNBUFFERED"]) == ("a b", "1")
    assert "PYTHONSAFEPATH" not in seen
    assert facts_of(kit.trial()[0])["resume_dir"] == ""


@pytest.mark.parametrize("step", [0, 3])
def test_a_resumed_program_goes_on_before_its_first_step(
    kit: Any, offer: Offer, tmp_path: Path, step: int
) -> None:
    offer(sh=(f'echo \'{{"step":{step},"value":0}}\'; echo \'{{"step":9,"value":0}}\''))
    trial, link = kit.trial(command="it", resume_dirs=(tmp_path,))
    run(trial)
    started = [("start", step - 1)] if step else []
    assert link.calls == [*started, ("report", step), ("report", 9)]


class TestBadEnds:
    def test_an_exit_code_fails_with_the_last_words(self, kit: Any, offer: Offer) -> None:
        offer(sh=("""echo '{"step":0,"value":1}'; echo one; echo two >&2; exit 3"""))
        with pytest.raises(ProgramFailed) as failed:
            run(kit.trial(command="it")[0])
        assert "command 'it' ended with exit code 3; its last lines:\n" in str(failed.value)
        assert {"one", "two"} <= set(str(failed.value).splitlines())

    def test_a_kill_from_outside_is_no_fault_of_the_trial(self, kit: Any, offer: Offer) -> None:
        offer(sh=("kill -KILL $$"))
        with pytest.raises(TrialFailed) as failed:
            run(kit.trial(command="it")[0])
        assert failed.value.reason is Reason.LOST

    def test_no_value_at_all(self, kit: Any, offer: Offer) -> None:
        offer(sh=("echo done"), metric="acc", step="epoch")
        with pytest.raises(
            TrialFailed, match=r'no value, such as \{"epoch": 0, "acc": 0.9\}'
        ) as it:
            run(kit.trial(command="it")[0])
        assert it.value.reason is Reason.INVALID_RESULT

    @pytest.mark.parametrize(
        "given", [{"run": ["no-such-program"]}, {"run": ["ls"], "cwd": "no-such-folder"}]
    )
    def test_what_is_missing_is_named(self, kit: Any, offer: Offer, given: Any) -> None:
        offer(**given)
        with pytest.raises(ProgramFailed, match=r"command 'it': cannot start .*: 'no-such|no-such"):
            run(kit.trial(command="it")[0])

    def test_a_surrogate_is_no_argument(self, kit: Any, offer: Offer) -> None:
        offer("pass")
        with pytest.raises(ProgramFailed, match="cannot start"):
            run(kit.trial(command="it", params={"x": "\ud800"})[0])


def test_a_flood_of_output_passes(
    kit: Any, offer: Offer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes = 100_000_000

    class Counter:
        n = 0

        def write(self, text: str) -> None:
            self.n += len(text)

        def flush(self) -> None:
            pass

    counter = Counter()
    monkeypatch.setattr(sys, "stdout", counter)
    # Half of it one line, half of it short ones.
    offer(
        sh=f"head -c {n_bytes // 2} /dev/zero; yes 1234567 | head -c {n_bytes // 2}; "
        "echo; echo '{\"value\":5}'"
    )
    assert run(kit.trial(command="it")[0]) == 5.0
    assert counter.n == n_bytes + 1


class TestVerdicts:
    # Both the shell and what it has started get the signal, and the child writes a checkpoint.
    CHILD = (
        "import os, signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(0.2); open(os.environ['HPO_CHECKPOINT_DIR'] + '/state', 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        'print(\'{"step": 0, "value": 1}\', flush=True)\n'
        "time.sleep(100)\n"
    )

    @pytest.fixture
    def strangers(self) -> set[psutil.Process]:
        """What other tests of this process have left running."""
        return set(psutil.Process().children())

    @pytest.fixture
    def trial(self, kit: Any, offer: Offer, request: pytest.FixtureRequest) -> Any:
        offer(self.CHILD, run=["sh", "-c", '"$1" -S it.py; true', "sh", sys.executable])
        trial, _ = kit.trial(command="it", verdicts={0: request.param})
        trial.checkpoint_dir.mkdir()
        return trial

    @pytest.mark.parametrize(
        ("trial", "raised"),
        [(Verdict.PRUNE, TrialPruned), (Verdict.PAUSE, TrialReleased)],
        indirect=["trial"],
    )
    def test_all_processes_are_asked_and_may_write_a_checkpoint(
        self, strangers: set[psutil.Process], trial: Trial, raised: type[Exception]
    ) -> None:
        with pytest.raises(raised):
            run(trial)
        assert (trial.checkpoint_dir / "state").exists()
        assert set(psutil.Process().children()) <= strangers

    def test_a_silent_program_hears_of_a_late_verdict(self, kit: Any, offer: Offer) -> None:
        offer(sh=("sleep 100"))
        trial, link = kit.trial(command="it")
        link.late = Verdict.PRUNE
        with pytest.raises(TrialPruned):
            run(trial)

    def test_one_that_ignores_sigterm_is_killed(
        self, strangers: set[psutil.Process], kit: Any, offer: Offer
    ) -> None:
        offer(
            "import signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "subprocess.Popen(['sleep', '100'])\n"
            'print(\'{"step": 0, "value": 1}\', flush=True)\n'
            "while True: time.sleep(1)\n",
            grace_seconds=0.3,
        )
        trial, _ = kit.trial(command="it", verdicts={0: Verdict.PRUNE})
        began = time.monotonic()
        with pytest.raises(TrialPruned):
            run(trial)
        assert 0.3 < time.monotonic() - began < 10
        assert set(psutil.Process().children()) <= strangers

    def test_nothing_is_reported_after_a_verdict_to_end(self, kit: Any, offer: Offer) -> None:
        offer(sh=("""for s in 0 1 2 3; do echo '{"step":'$s',"value":1}'; done"""))
        trial, link = kit.trial(command="it", verdicts={1: Verdict.PRUNE})
        with pytest.raises(TrialPruned):
            run(trial)
        assert [step for step, _ in link.values] == [0, 1]

    def test_one_that_was_done_when_it_was_asked_completes(self, kit: Any, offer: Offer) -> None:
        offer(sh=("""trap '' TERM; echo '{"step":0,"value":1}'; sleep 0.4; echo '{"value":2}'"""))
        trial, _ = kit.trial(command="it", verdicts={0: Verdict.PAUSE})
        assert run(trial) == 2.0


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_trial(
    kit: Any, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "LINGER_SECONDS", 0.1)
    offer(sh=("sleep 5 & echo '{\"value\":1}'"))
    began = time.monotonic()
    assert run(kit.trial(command="it")[0]) == 1.0
    assert time.monotonic() - began < 4


def test_the_offer_names_the_commands(offer: Offer, tmp_path: Path) -> None:
    assert descriptor_of(run) is not None
    assert "--commands FILE" in describe({}).summary
    offer(sh=("true"))
    assert describe(os.environ).summary.endswith("command: it")
    (tmp_path / "commands.yaml").write_text("it: 3")
    assert "none; " in describe(os.environ).summary
