"""experiments.induction: the heads form in two layers, and cannot in one."""

import torch
from conftest import complaint, run_here

from experiments import induction
from experiments.shared import trials


def test_sequences():
    """Catches a period that is not the one that is told, and one for all rows, which a fixed look back would find."""
    ids, period = induction.sequences(32, torch.Generator().manual_seed(0))
    assert ids.shape == (32, induction.T + 1) and len(period.unique()) > 5
    assert all(torch.equal(row[p:], row[:-p]) for row, p in zip(ids, period.flatten()))


def test_scores(monkeypatch):
    """Catches a score that counts the copy itself, or only the last of several: a head that looks at what followed has all."""
    T = induction.T
    ids, period = torch.arange(6).repeat(9)[None, : T + 1], torch.tensor([[6]])

    def looking(q, k, visible, score, normalize):
        i, j = torch.arange(T)[:, None], torch.arange(T)
        copies = ((i + 1 - j) % 6 == 0) & (j <= i) & (j > 0)
        return (copies / copies.sum(-1, keepdim=True).clamp_min(1)).expand(1, 2, T, T)

    monkeypatch.setattr(induction, "attention_weights", looking)
    model = induction.GPT(
        induction.GPTConfig(block_size=T, vocab_size=6, n_layer=1, n_head=2, n_embd=8)
    )
    found, maps = induction.measure(model, ids, period, 0)
    assert torch.allclose(torch.tensor(found["induction"]), torch.ones(1, 2))
    assert found["previous token"] == [[0, 0]] and maps.shape == (1, 2, T, T)


def test_two_layers_do_what_one_cannot(monkeypatch, tmp_path):
    """Catches scores and losses of the wrong tokens: with two layers what comes again is foreseen, with one it is not."""

    def every(function, jobs):
        return [
            function(n_layer, steps if n_layer == 2 else steps // 3, *rest)
            for n_layer, steps, *rest in jobs
        ]

    monkeypatch.setattr(trials, "every", every)
    runs = induction.main(induction.Settings(seeds=1, steps=270, every=90, out_dir=str(tmp_path)))
    (one,), (two,) = runs[1], runs[2]
    assert (
        two["curve"][-1]["again"] < 1.5 < one["curve"][-1]["again"]
    )  # 400 steps take one layer to 2.1
    assert induction.begins(two) and not induction.begins(one)
    assert two["curve"][-1]["new"] > 3  # of log(32) = 3.47: what is new cannot be foreseen
    assert len([*tmp_path.glob("*.png")]) == 1


def test_bad_settings():
    """Catches a traceback for what cannot be."""
    assert "every=600 must be" in complaint(run_here("-m", "experiments.induction", "--every=600"))
