"""Runs pieces of work here, one after another, or on Ray's workers (an optional extra).

An executor is a context that gives a Map, which yields (place, result) for every item as results come. Items are drawn
lazily, a few at a time. Functions must be importable by name; items and results must pickle.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

from specviz.errors import SpecvizError

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[int, Any]]]
Executor = Callable[[], AbstractContextManager[Map]]

RETRIES = 3  # of a piece of work whose worker died
PLACE_S = 60.0  # how long workers may take to find a place in the cluster
IN_FLIGHT = 2  # pieces per worker: one in work and one waiting, so that no worker waits for us
_OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",  # tells nobody about itself
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own switch for a cluster that listens to 127.0.0.1 alone
}


@contextmanager
def local() -> Iterator[Map]:
    """Runs the pieces in this process, one after another, in order."""
    yield lambda function, items: ((place, function(item)) for place, item in enumerate(items))


@contextmanager
def on_ray(address: str | None = None, num_workers: int | None = None) -> Iterator[Map]:
    """Runs the pieces on Ray's workers, one GPU each where the cluster has GPUs, else one CPU each.

    address: None starts a cluster on this machine, which ends with the context; "auto" or "host:port" joins one.
    num_workers: None takes one per GPU, or per CPU where there is none. A piece that dies with its worker is redone.
    Raises SpecvizError if Ray is missing, cannot be reached or has no free place, or a piece kills every worker.
    """
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"num_workers must be >= 1 (got {num_workers})")
    is_ours = _join_or_start(address, num_workers)
    import ray

    try:
        yield partial(_distribute, ray, _start_workers(ray, num_workers))
    finally:
        if is_ours:
            ray.shutdown()


def _join_or_start(address: str | None, num_workers: int | None) -> bool:
    """Starts or joins a cluster; False if this process has joined one already, which is then used."""
    environment = {}
    options = {}
    if address is None:
        module_path = os.pathsep.join(
            filter(None, sys.path)
        )  # workers find what this process finds
        environment = {**_OWN_CLUSTER, "PYTHONPATH": module_path}
        options = {"num_cpus": num_workers, "include_dashboard": False}
    with _set_environment(environment):
        try:
            import ray
        except ImportError as error:
            message = 'the executor ray needs Ray, which is an extra: pip install "ray>=2.60,<3"'
            raise SpecvizError(message) from error
        if ray.is_initialized():
            return False
        try:
            with _keep_handler(signal.SIGTERM):
                ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    logging_level="ERROR",
                    **options,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "on this machine" if address is None else f"at {address}"
            raise SpecvizError(
                f"there is no Ray cluster {where} ({str(error).splitlines()[0]})"
            ) from error
    return True


@contextmanager
def _keep_handler(number: int) -> Iterator[None]:
    """Restores the handler of a signal, which Ray takes for itself only to abort the process."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()  # no other may set it
        if is_main and before is not None:  # None: it was not set from Python
            signal.signal(number, before)


@contextmanager
def _set_environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for the processes that are started inside the block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


class _Worker:
    """A worker process, which keeps its loaded models from one piece to the next."""

    def do(self, function: Callable[[Any], Any], item: Any) -> Any:
        return function(item)


def _start_workers(ray: ModuleType, num_workers: int | None) -> list[Any]:
    """Starts the workers and returns those that found a place in the cluster."""
    resources = ray.cluster_resources()
    num_gpus = int(resources.get("GPU", 0))
    needs = {"num_gpus": 1} if num_gpus else {"num_cpus": 1}
    num_workers = num_workers or num_gpus or max(1, int(resources.get("CPU", 1)))
    worker_class = ray.remote(**needs, max_restarts=-1, max_task_retries=RETRIES)(_Worker)
    workers = [worker_class.remote() for _ in range(num_workers)]
    worker_of = {worker.__ray_ready__.remote(): worker for worker in workers}
    placed, _ = ray.wait([*worker_of], num_returns=len(worker_of), timeout=PLACE_S)
    if not placed:
        raise SpecvizError(
            f"no worker found a free slot in the Ray cluster within {PLACE_S:g} seconds"
        )
    return [worker_of[ref] for ref in placed]


def _distribute(
    ray: ModuleType, workers: list[Any], function: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
    """Gives each worker at most IN_FLIGHT pieces; a worker that finishes one gets the next."""
    waiting = enumerate(items)
    in_flight = {}

    def hand_out(worker: Any) -> None:
        for place, item in islice(waiting, 1):
            in_flight[worker.do.remote(function, item)] = place, worker

    for worker in workers * IN_FLIGHT:
        hand_out(worker)
    while in_flight:
        (done, *_), _ = ray.wait([*in_flight])
        place, worker = in_flight.pop(done)
        hand_out(worker)
        try:
            result = ray.get(done)
        except ray.exceptions.RayTaskError as error:  # what the function raised, as itself
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise SpecvizError(
                f"a piece of work was lost {RETRIES + 1} times with its worker ({type(error).__name__}), which may be "
                "out of memory; use fewer workers or a smaller batch. Finished work in a folder of your own is "
                "saved: run the same command again to go on"
            ) from error
        yield place, result
