"""The forecast is near the truth on a clock that counts tokens, so that no test depends on a machine's mood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_tasks import evaluation_of

from daybreak.evaluation.finetuning import finetune, forecast, jobs
from daybreak.evaluation.finetuning.forecast import job_seconds
from daybreak.evaluation.finetuning.jobs import run_job
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks.task_file import read_task_file


class Clock:
    """Stands still but for what models work on: seconds a batch, and a token of it, three times as many to learn."""

    def __init__(self, batch: float, token: float, loading: float):
        self.now, self._batch, self._token, self._loading = 0.0, batch, token, loading

    def monotonic(self) -> float:
        return self.now

    def built(self, build: Callable[..., object]) -> Callable[..., object]:
        def slow(*arguments: object) -> object:
            self.now += self._loading
            model = build(*arguments)
            model.register_forward_pre_hook(self._work, with_kwargs=True)  # type: ignore[attr-defined]
            return model

        return slow

    def _work(self, model: object, arguments: object, inputs: dict[str, object]) -> None:
        spent = self._batch + self._token * inputs["input_ids"].numel()  # type: ignore[attr-defined]
        self.now += 3 * spent if model.training else spent  # type: ignore[attr-defined]


@pytest.mark.parametrize(("batch", "token", "loading"), [(0.0, 1e-3, 0.0), (0.02, 0.0, 1.0), (0.01, 1e-4, 2.0)])
@pytest.mark.parametrize(("rows", "epochs"), [(640, 3), (20, 1)])
def test_the_forecast_is_near_the_truth(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: float, token: float,
    loading: float, rows: int, epochs: int,
) -> None:  # fmt: skip
    clock = Clock(batch, token, loading)
    for module in (jobs, forecast):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(jobs, "build_classifier", clock.built(jobs.build_classifier))
    assert not hasattr(finetune, "time"), "the loop must not look at another clock"
    protocol = PROTOCOLS["quick"].changed(epochs=epochs, rows=rows)
    (job,) = evaluation_of(encoder, read_task_file(weather), tmp_path, protocol=protocol).all_jobs()
    told = job_seconds(job, jobs.encoded_task(job))
    took = run_job(job).seconds
    assert took / 1.2 <= told <= took * 1.2
