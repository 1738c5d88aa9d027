"""experiments.parallel: equal weights, a step that leaves the past as it was, memory of scores."""

import torch

from experiments import parallel
from experiments.shared import trials


def test_equal_weights():
    """Catches a layer that is slower because it is larger."""
    for name in parallel.LAYERS:
        matrices = [p for p in parallel.new_layer(name).parameters() if p.dim() == 2]
        assert sum(p.numel() for p in matrices) == 6 * parallel.WIDTH**2


@torch.no_grad()
def test_a_decoding_step(monkeypatch):
    """Catches a past of another length, and one that grows from call to call."""
    layer = parallel.new_layer(parallel.ATTENTION)
    caches = []
    new_cache = layer.attn.new_cache
    layer.attn.new_cache = lambda *args: caches.append(new_cache(*args)) or caches[-1]
    monkeypatch.setattr(parallel, "new_layer", lambda name: layer)
    step = parallel.decoding_step(parallel.ATTENTION, 5)
    for _ in range(3):
        step()
        assert len(caches[0]) == 5


def test_a_small_run(small_experiment, monkeypatch):
    """Catches dot scores that need as much memory as additive ones, and names that are mixed up."""
    monkeypatch.setattr(trials, "seconds_alone", lambda call: 0.001)  # no test can rely on time
    lengths = {parallel.LAYERS: [8, 16], parallel.SCORES: [64, 128]}
    monkeypatch.setattr(parallel, "LENGTHS", lengths)
    found = small_experiment(parallel)["costs"]
    additive, dot = found["a head with these scores (MB)"].values()
    assert additive["128"][0] > 20 * dot["128"][0] and additive["128"][0] > 3 * additive["64"][0]
