"""Where cells are filled side by side: processes of this machine, a ray cluster, a dask cluster.

Each is a context: it begins with what joblib must be told, and ends what it began as soon as it is left, not when the
garbage is collected or workers have been idle for minutes: they hold memory and GPUs. What a cluster lacks is told in
one sentence.

On a cluster the workers need Daybreak, and every path under the name that it has here. A dask cluster is the current
client's, or that of DASK_SCHEDULER_ADDRESS; its workers should have one thread each, and one GPU. Ray reads RAY_ADDRESS
itself, and without one begins a cluster of this machine; joblib hears of what ray did when all of it is done.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from daybreak.core.errors import UserError, reason


@contextmanager
def _processes(workers: int) -> Iterator[dict[str, Any]]:
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    with tempfile.TemporaryDirectory() as claims:
        # Asked here: a process that has counted the GPUs may no longer be able to choose among them.
        start = (claims, _visible_devices(), os.getpid())
        try:
            yield {"backend": "loky", "n_jobs": workers, "initializer": start_worker, "initargs": start}
        except TerminatedWorkerError:
            raise UserError(
                "A process that was fine-tuning is gone; a system kills the largest when memory runs out.",
                "The same command goes on from here; use fewer --workers.",
            ) from None
        finally:
            get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


@contextmanager
def _ray(workers: int) -> Iterator[dict[str, Any]]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise _lacking("ray", "ray") from None
    register_ray()
    begun = not ray.is_initialized()
    try:
        if begun:
            obeyed = signal.getsignal(signal.SIGTERM)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray tells its makers how it is used
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, obeyed)  # ray takes it for itself
        there = ray.cluster_resources()
        room = int(min(there.get("CPU", 0), there.get("GPU", math.inf)))
        if room < workers:  # ray would wait for more without an end
            raise UserError(
                f"The ray cluster has room for {room} fine-tunings at a time, not for {workers}.",
                "Use fewer --workers, or a larger cluster.",
            )
        yield {"backend": "ray", "n_jobs": workers, "ray_remote_args": {"num_gpus": 1 if "GPU" in there else 0}}
    except (OSError, ray.exceptions.RayError) as error:
        raise _failing("ray", error) from None
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _dask(workers: int) -> Iterator[dict[str, Any]]:
    try:
        import distributed
    except ImportError:
        raise _lacking("dask", "dask[distributed]") from None
    from joblib._dask import DaskDistributedBackend

    class Cluster(DaskDistributedBackend):
        """joblib's own counts the threads of the cluster in place of what is asked; if there is one, it does not go."""

        def effective_n_jobs(self, n_jobs: int) -> int:
            super().effective_n_jobs(n_jobs)  # waits until there is a worker
            return max(2, n_jobs)

    begun = None
    try:
        try:
            client = distributed.get_client()
        except ValueError:  # there is none
            address = os.environ.get("DASK_SCHEDULER_ADDRESS")
            if not address:
                raise UserError(
                    "--backend dask needs a cluster, and none is named.", "Set DASK_SCHEDULER_ADDRESS=tcp://HOST:8786."
                ) from None
            try:
                client = begun = distributed.Client(address, set_as_default=False)
            except ValueError as error:
                raise _failing("dask", error) from None
        yield {"backend": Cluster(client=client), "n_jobs": workers}
    except (OSError, distributed.KilledWorker, distributed.client.FutureCancelledError) as error:
        raise _failing("dask", error) from None
    finally:
        if begun:
            begun.close()


def _lacking(backend: str, package: str) -> UserError:
    return UserError(f"--backend {backend} needs {package}.", f"Install it: pip install '{package}'.")


def _failing(backend: str, error: Exception) -> UserError:
    return UserError(
        f"The {backend} cluster fails: {reason(error)}.",
        "See to its address and its workers; the same command goes on.",
    )


def start_worker(claims: str, devices: Sequence[str], parent: int) -> None:
    """Give this process one GPU of its own, before CUDA starts; joblib itself assigns none.

    A GPU is claimed by locking a file. The lock ends with the process, so that a worker that takes the place of another
    takes its GPU. Where workers outnumber GPUs, they share them evenly.

    Args:
        claims: an empty folder for the locks.
        devices: as CUDA_VISIBLE_DEVICES names them.
        parent: the process that ends its workers; should it be killed itself, they end too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal, and is the parent's
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if not devices:
        return
    for place, device in ((place, device) for place in itertools.count() for device in devices):
        lock = os.open(Path(claims, f"{device.replace('/', '-')}.{place}"), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        return


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _visible_devices() -> list[str]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]


POOLS: dict[str, Callable[[int], AbstractContextManager[dict[str, Any]]]] = {
    "processes": _processes,
    "ray": _ray,
    "dask": _dask,
}
"""By the name of the backend: from a number of workers to what joblib must be told."""
