"""Threads that follow what other programs leave free."""

import subprocess
import sys

import pytest
import torch
from mechanisms import new_model

from engine.common import threads
from engine.decoding import quantization
from engine.decoding.session import decode_one_token, prefill


@pytest.fixture
def four_cores(monkeypatch):
    """Four cores, four threads, and a clock that the test moves: [seconds, seconds of others]."""
    clock, count = [0.0, 0.0], [4]
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(threads.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(threads, "seconds_elsewhere", lambda: clock[1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: count.__setitem__(0, n))
    return clock, count


def test_threads_follow_the_free_cores(four_cores):
    """Catches threads that wait for cores that others have, or that never come back."""
    clock, count = four_cores
    cores = threads.FreeCores()
    for others, expected in ((0.4, 4), (2.1, 2), (9.0, 1), (0.0, 4)):
        clock[0], clock[1] = clock[0] + 1, clock[1] + others
        with cores:
            assert count == [expected]
        assert count == [4]
    clock[1] += 5
    with cores:  # too soon to know
        assert count == [4]
    clock[0] += 1
    with cores:
        assert count == [1]
        count[0] = 3  # as another stream would, between two tokens of this one
    assert count == [4]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat")
def test_another_program_is_seen():
    """Catches figures that count this process as another one, or others not at all."""
    begin = threads.seconds_elsewhere()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"])
    assert threads.seconds_elsewhere() - begin > 0.4
    begin = threads.seconds_elsewhere()
    assert begin <= threads.seconds_elsewhere() + 0.05


@pytest.mark.skipif(not quantization.HAS_FBGEMM, reason="these ways to multiply are FBGEMM's")
@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("rows", [1, 10])
def test_the_same_bits_in_any_number_of_threads(kind, rows):
    """Catches a text that depends on other programs: decoding takes the threads they leave."""
    torch.manual_seed(0)
    shape = dict(block_size=256, vocab_size=300, n_layer=1, n_head=6, n_kv_head=3, n_embd=384)
    model = new_model(**shape, visible="alibi:6")
    dtype, quantize = (torch.float32, "int8") if kind == "int8" else (torch.float16, "none")
    model = quantization.prepare_for_inference(model, dtype, quantize, rows)
    ids, found = torch.randint(300, (rows, 200)), []
    most = torch.get_num_threads()
    try:
        for count in 1, 3:
            torch.set_num_threads(count)
            cache = model.new_cache(rows)
            with torch.inference_mode():
                steps = [prefill(model, ids[:, :190], cache)]
                for n in range(190, 194):
                    steps.append(decode_one_token(model, ids[:, n : n + 1], cache))
            found.append(torch.cat(steps))
    finally:
        torch.set_num_threads(most)
    assert torch.equal(*found)
