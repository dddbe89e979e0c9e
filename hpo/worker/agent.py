"""The worker's supervisor: registers, keeps leases alive, serves its slots, drains.

One thread per slot claims by long poll and performs attempts; one thread sends heartbeats. None
of them ends over a fault of the network, of a child or of our own: they log it and go on.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hpo.access import read_token_file
from hpo.client import AccessDenied, ApiError
from hpo.errors import HpoError, Unavailable, VersionMismatch
from hpo.version import PROTOCOL_VERSION, __version__
from hpo.worker.attempt import END_SECONDS, Attempt, Node
from hpo.worker.calls import WorkerClient
from hpo.worker.children import ChildNotStarted, Children
from hpo.worker.claim import Claim
from hpo.worker.devices import Slot, find_slots, threads_per_child
from hpo.worker.host import shared_memory_bytes, shared_memory_warning
from hpo.worker.options import WorkerOptions
from hpo.worker.outbox import delays
from hpo.worker.probe import describe_node
from hpo.worker.signals import Ended, Signals
from hpo.worker.sweep import Sweeper

# A stop waits for polls in flight, so they are short; the API looks for work once a second anyway.
POLL_SECONDS = 2.0
REQUEST_SECONDS = 15.0  # well below a lease: a heartbeat that got lost must be followed by another
FAULT_PAUSE_SECONDS = 1.0
# The end of the grace period: SIGKILL after END_SECONDS, then the last outcomes are delivered.
EXPIRE_SECONDS = END_SECONDS + 2.0
GIVE_UP_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Agent:
    """One worker process at work. `drain` and `end` may be called from any thread."""

    def __init__(
        self,
        node: Node,
        client: WorkerClient,
        slots: Sequence[Slot],
        objectives: Sequence[dict[str, Any]],
        *,
        draining: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._client, self._slots = node, client, slots
        self._options = node.options
        self._objectives, self._clock = objectives, clock
        self._id = str(uuid.uuid4())
        self._heartbeat_seconds = 10.0
        self._held: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self.draining = draining or threading.Event()
        self._stopped = threading.Event()
        self._sweeper = Sweeper(self._options.checkpoints, client, is_held=self._holds)

    def register(self) -> bool:
        """Registers, however long the API is away; False when draining began before.

        Raises VersionMismatch or ApiError when the service does not accept this worker.
        """
        for n_tries, delay in enumerate(delays()):
            try:
                self._register_once()
            except (Unavailable, ApiError) as error:
                if isinstance(error, ApiError) and error.status < 500:
                    raise
                if n_tries == 0:
                    logger.warning("waiting for the API: %s", error)
                if self.draining.wait(delay):
                    return False
            else:
                return not self.draining.is_set()
        raise AssertionError("the delays never end")

    def serve(self) -> None:
        """Serves the slots until draining is over."""
        heartbeat = threading.Thread(target=self._beat, name="hpo-heartbeat", daemon=True)
        heartbeat.start()
        threading.Thread(target=self._sweeper.serve, name="hpo-sweep", daemon=True).start()
        threads = [
            threading.Thread(
                target=self._serve_slot, args=(slot,), name=f"hpo-slot-{slot.index}", daemon=True
            )
            for slot in self._slots
        ]
        for thread in threads:
            thread.start()
        self.draining.wait()
        self._drain(threads)
        self._stopped.set()
        self._sweeper.stop()
        heartbeat.join(GIVE_UP_SECONDS)

    def drain(self) -> None:
        """No new claims; running trials are asked to give themselves back."""
        self.draining.set()

    def _drain(self, threads: Sequence[threading.Thread]) -> None:
        grace = self._options.grace_seconds
        patience = max(grace / 2, grace - EXPIRE_SECONDS - GIVE_UP_SECONDS)
        logger.info("stopping: no new trials; running ones have %g s", patience)
        steps: tuple[tuple[Callable[[Attempt], None], float], ...] = (
            (Attempt.pause, patience),
            (Attempt.expire, EXPIRE_SECONDS),
            (Attempt.give_up, GIVE_UP_SECONDS),
        )
        for step, patience_seconds in steps:
            for attempt in self._attempts():
                step(attempt)
            give_up_at = self._clock() + patience_seconds
            for thread in threads:
                thread.join(max(0.0, give_up_at - self._clock()))
            if not any(thread.is_alive() for thread in threads):
                return

    def _register_once(self) -> None:
        options = self._options
        document = {
            "id": self._id,
            "name": options.name or f"{platform.node()}:{os.getpid()}",
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "slots": len(self._slots),
            "devices": [slot.device for slot in self._slots],
            "allow": list(options.allow),
            "objectives": list(self._objectives),
        }
        try:
            times = self._client.register(document)
        except ApiError as error:
            if error.code == VersionMismatch.code:
                raise VersionMismatch(str(error), **dict(error.problem)) from error
            raise
        self._heartbeat_seconds = float(times["heartbeat_seconds"])

    def _beat(self) -> None:
        away_since: float | None = None
        while not self._stopped.wait(self._heartbeat_seconds if away_since is None else 1.0):
            try:
                self._beat_once()
            except (Unavailable, ApiError) as error:
                if self._stopped.is_set():
                    return
                if away_since is None:
                    logger.warning("the API is away, trials go on: %s", error)
                    away_since = self._clock()
                self._lose_after_too_long(away_since)
            except Exception:
                logger.exception("a heartbeat failed")
            else:
                if away_since is not None:
                    logger.info("the API is back after %.0f s", self._clock() - away_since)
                away_since = None

    def _beat_once(self) -> None:
        with self._lock:
            tokens = list(self._held)
        try:
            answer = self._client.heartbeat(self._id, tokens)
        except ApiError as error:
            if error.code != "not_found":
                raise
            logger.warning("the API does not know this worker any more; registering again")
            self._register_once()
            answer = self._client.heartbeat(self._id, tokens)
        for token in answer["lost"]:
            with self._lock:
                attempt = self._held.get(token)
            if attempt is not None:
                attempt.lose("its lease is lost")
        self._sweeper.tell(answer["deleted"])

    def _lose_after_too_long(self, away_since: float) -> None:
        limit = self._options.max_offline_seconds
        if self._clock() - away_since > limit:
            for attempt in self._attempts():
                attempt.lose(f"the API was away for more than {limit:g} s")

    def _holds(self, study_uuid: str) -> bool:
        return any(attempt.claim.study_uuid == study_uuid for attempt in self._attempts())

    def _serve_slot(self, slot: Slot) -> None:
        while not self.draining.is_set():
            try:
                claim = self._claim(slot)
                if claim is not None:
                    self._perform(claim, slot)
            except HpoError as error:
                logger.error("slot %d: %s", slot.index, error)
                self.draining.wait(FAULT_PAUSE_SECONDS)
            except Exception:
                logger.exception("slot %d met a fault and goes on", slot.index)
                self.draining.wait(FAULT_PAUSE_SECONDS)

    def _claim(self, slot: Slot) -> Claim | None:
        """Asks for a trial, with one key until it is answered: a lost answer loses no trial."""
        document = {
            "worker_id": self._id,
            "claim_key": str(uuid.uuid4()),
            "device": slot.device,
            "wait_seconds": POLL_SECONDS,
        }
        for delay in delays():
            try:
                answer = self._client.claim(document)
            except (Unavailable, AccessDenied):  # the heartbeat tells of it
                if self.draining.wait(delay):
                    return None
            except ApiError as error:
                if error.code != "not_found":
                    raise
                self._register_once()
                self.draining.wait(delay)
            else:
                return None if answer is None else Claim.from_json(answer)
        raise AssertionError("the delays never end")

    def _perform(self, claim: Claim, slot: Slot) -> None:
        attempt = Attempt(claim, slot, self._node)
        with self._lock:
            self._held[claim.token] = attempt
        try:
            if self.draining.is_set():  # the poll was in flight when the stop came
                attempt.release()
            else:
                attempt.perform()
        except ChildNotStarted as error:
            logger.error("%s: given back: %s", claim.label, error)
            attempt.release()
            self.draining.wait(FAULT_PAUSE_SECONDS)
        except BaseException:
            attempt.lose("the worker met a fault")
            raise
        finally:
            with self._lock:
                del self._held[claim.token]

    def _attempts(self) -> list[Attempt]:
        with self._lock:
            return list(self._held.values())


def run_worker(options: WorkerOptions) -> int:
    """Serves until a signal; the exit code is 0 unless a second one ended it at once."""
    signals = Signals()
    signals.listen()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # a line for each request otherwise
    warning = shared_memory_warning(shared_memory_bytes())
    if warning:
        logger.warning("%s", warning)
    try:
        return _serve(options, signals)
    except Ended as ended:
        if ended.exit_code:
            logger.warning("ended at once; leases run out by themselves")
        return ended.exit_code
    except HpoError as error:
        logger.error("%s", error)
        return AccessDenied.exit_code if isinstance(error, AccessDenied) else 1


def _serve(options: WorkerOptions, signals: Signals) -> int:
    slots = find_slots(options, os.environ)
    children = Children(options, n_threads=threads_per_child(len(slots), os.environ))
    try:
        with WorkerClient(
            options.url, token=_token_of(options), timeout_seconds=REQUEST_SECONDS
        ) as client:
            return _work(options, slots, children, client, signals)
    finally:
        signals.ignore()
        children.close()


def _token_of(options: WorkerOptions) -> Callable[[], str | None] | None:
    """A file is read for each request, so that a new token needs no new worker."""
    file = options.token_file
    if file is None:
        return None

    def token() -> str | None:
        try:
            return read_token_file(file)
        except OSError as error:  # it may be on its way: the service refuses until it is there
            logger.warning("no token: %s", error)
            return None

    return token


def _work(
    options: WorkerOptions,
    slots: Sequence[Slot],
    children: Children,
    client: WorkerClient,
    signals: Signals,
) -> int:
    n_threads = threads_per_child(len(slots), os.environ)
    node = Node(options=options, client=client, children=children, n_threads=n_threads)
    objectives = describe_node(options, slots, children)
    agent = Agent(node, client, slots, objectives, draining=signals.draining)
    agent.register()
    signals.is_serving = True
    allowed = ", ".join(options.allow)
    for slot in slots:
        logger.info(
            "slot %d on %s: serving %s for %s", slot.index, slot.device, allowed, client.url
        )
    agent.serve()
    logger.info("stopped")
    return 0
