"""Sampling from a checkpoint folder, as a user does it."""

import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time

import pytest
import torch
from conftest import (
    POEM,
    complaint,
    configure,
    exit_code,
    forked,
    newest,
    parametrize,
    read_back,
    run_here,
    text_file,
    tiny,
)

from engine import prepare, published
from engine.generate import CompiledStep, Printer, Text, decode_and_sample
from engine.settings import parse_settings
from engine.tokenizer import Tokenizer
from model import GPT
from sample import SampleConfig, batches_of, sample, write
from train import train

LIKELIEST = dict(start="Tyger Tyger, ", temperature=0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that knows the poem by heart, without its text. Its model has 64 ids, its tokenizer
    about 30.
    """
    folder = tmp_path_factory.mktemp("trained")
    prepare.write_dataset(folder / "data", [POEM * 30], "char", "a text")
    paths = dict(dataset=str(folder / "data"), out_dir=str(folder / "out"))
    shape = dict(block_size=32, n_embd=32, vocab_size=64)
    train(configure(**paths, **shape, batch_size=8, max_iters=300, learning_rate=1e-2))
    shutil.rmtree(folder / "data")
    return paths["out_dir"]


@pytest.fixture
def written(trained, capsys):
    """What sample.py prints with these settings."""

    def run(**changes):
        capsys.readouterr()
        settings = dict(out_dir=trained, device="cpu", max_new_tokens=80)
        sample(SampleConfig(**settings | changes))
        return capsys.readouterr().out

    return run


def test_it_writes_what_it_learned(written):
    """Catches a model or tokenizer that is lost on the way, and quantized weights that forgot."""
    assert "In the forests of the night;" in written(**LIKELIEST)
    poems = written(**LIKELIEST, quantize="int8", num_samples=6)
    assert poems.count("In the forests of the night;") == 6


def test_a_text_depends_on_its_prompt_and_seed_alone(written, tmp_path):
    """Catches chance from elsewhere, and a text that depends on its batch or its neighbours."""
    prompts = ["Tyger", "In the forests of the night", "C"]
    alone = {}
    for prompt, seed in itertools.product(prompts, (5, 6)):
        torch.rand(5)
        text = written(start=prompt, seed=seed, temperature=1.5)
        alone[prompt, seed] = text.removesuffix("\n").removeprefix(prompt)
    assert alone["Tyger", 5] != alone["Tyger", 6]
    file = tmp_path / "prompts.txt"

    def together(order, **changes):
        file.write_text("\n".join(order))
        lines = written(prompts=str(file), seed=5, temperature=1.5, json=True, **changes)
        return [json.loads(line)["text"] for line in lines.splitlines()]

    for order, batch_size in (prompts, 64), (prompts[::-1], 4):
        expected = [alone[place] for place in itertools.product(order, (5, 6))]
        assert together(order, num_samples=2, batch_size=batch_size) == expected
    # No text outgrows the context: prompts of all lengths are one batch.
    assert together(prompts, max_new_tokens=4) == [alone[prompt, 5][:4] for prompt in prompts]


def test_batches():
    """Catches a first text that waits for others, lengths that a full context would mix, and a
    session that does not know of the compiled step.
    """
    config = SampleConfig(batch_size=2, max_new_tokens=4)
    model = tiny()
    texts = [Text(None, range(length), 4) for length in (9, 2, 9, 2, 9)]
    first, second, third, fourth, fifth = texts
    assert batches_of(texts, model, config) == [[first, second], [third, fourth], [fifth]]
    config.max_new_tokens = 20
    assert batches_of(texts, model, config) == [[first, third], [fifth], [second, fourth]]
    compiled = CompiledStep(decode_and_sample)
    text = Text(Pieces(), torch.arange(3), 2)
    write([text], Printer([text]), model.eval(), config, compiled)
    assert compiled.new_cache.cache_info().currsize


def test_json_lines(written, trained):
    """Catches log-probabilities of another token or distribution, and another token's text."""
    line = json.loads(written(start="Tyger", json=True, max_new_tokens=9, top_k=3, temperature=2.0))
    tokenizer = published.load_tokenizer(newest(trained), 64)
    model = GPT.from_pretrained(newest(trained)).eval()
    idx = torch.tensor([tokenizer.encode("Tyger").tolist() + line["tokens"]])
    logits = model(idx, idx)[0][0, 4:-1, : tokenizer.vocab_size]
    expected = logits.log_softmax(-1).gather(1, idx[0, 5:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(line["logprobs"]), expected, rtol=0, atol=1e-4)
    assert line["ended"] == "length" and tokenizer.decode(line["tokens"]) == line["text"]


class Pieces(Tokenizer):
    """Tokens of any bytes; 9 ends a text."""

    def __init__(self):
        pieces = [b"a", b"ab", b"b", "é".encode()[:1], "é".encode()[1:], b"xyz"]
        super().__init__(dict(enumerate(pieces)), {})
        self.ends = [9]


@parametrize(
    "stop, tokens, shown, ended",
    [
        (("aab",), [0, 0, 1, 5], "||a|", "stop"),
        (("abb",), [1, 0, 5, 1, 2, 5], "|ab|axyz|||", "stop"),
        (("yz", "y"), [0, 5, 0], "a|x|", "stop"),
        ((), [3, 4, 3], "|é|", None),
        (("é",), [0, 3, 4, 0], "a|||", "stop"),
        (("ab",), [0, 9, 0], "|a|", "end_of_text"),
        ((), [3, 9], "|\ufffd", "end_of_text"),
    ],
)
def test_what_is_shown_when(stop, tokens, shown, ended):
    """Catches half a character, the beginning of a stop string, and text after the end."""
    text = Text(Pieces(), None, 99, stop=stop)
    for token, piece in zip(tokens, shown.split("|"), strict=True):
        text.add(token)
        assert text.unshown() == piece
    assert text.ended == ended


def test_control_characters_on_a_terminal(monkeypatch, capsys):
    """Catches bytes that a terminal would obey, and files that are not exact."""
    for on_terminal, shown in (True, "\\u001b[2J\t\\u0007"), (False, "\x1b[2J\t\x07"):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
        text = Text(Pieces(), None, 1, prompt="\x1b[2J\t\x07")
        text.end("length")
        Printer([text]).show()
        assert capsys.readouterr().out == shown + "\n"


def test_prompts_from_files_and_pipes(trained, tmp_path):
    """Catches a byte order mark, line ends that change, and figures that mix with the text."""
    command = ["sample.py", f"--out_dir={trained}", "--max_new_tokens=9", "--device=cpu"]
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes("\ufeffTyger\nTyger".encode())
    for flag in f"--start=FILE:{prompt}", "--start=-":
        result = run_here(*command, flag, typed="\ufeffTyger\nTyger")
        assert result.returncode == 0 and result.stdout.startswith("Tyger\nTyger"), result.stderr
        assert len(result.stdout.rstrip("\n")) == len("Tyger\nTyger") + 9
    prompt.write_bytes(b"Tyger\r\nTyger")
    assert "character '\\r'" in complaint(run_here(*command, f"--start=FILE:{prompt}"))
    result = run_here(*command, "--prompts=-", typed="What\r\n\r\n\nCould frame\n")
    assert result.stdout.startswith("What") and result.stdout.count("---------------") == 1
    assert "tokens/s" in result.stderr and "tokens/s" not in result.stdout
    assert "prompts=- has no line" in complaint(run_here(*command, "--prompts=-", typed="\n"))


def test_a_conversation(written, monkeypatch):
    """Catches turns that are forgotten, a bad line that ends the conversation, no end
    with its input, and an interrupted answer that takes the next with it.
    """
    reads = []
    hidden = GPT.hidden
    interrupted = None

    def counted(self, idx, *rest):
        reads.append(idx.shape[1])
        if len(reads) == interrupted:
            raise KeyboardInterrupt
        return hidden(self, idx, *rest)

    def converse(*lines, **changes):
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        return written(interactive=True, temperature=0.0, **changes)

    told = converse("Tyger Tyger, burning bright,", "What immortal hand or eye,", stop=("\n",))
    assert told.splitlines()[:2] == ["In the forests of the night;", "Could frame thy symmetry?"]
    monkeypatch.setattr(GPT, "hidden", counted)
    converse("Ty", "ß", "In", "What", max_new_tokens=4)
    assert [n for n in reads if n > 1] == [3, 3 + 4 + 3, 3 + 4 + 3 + 4 + 5]
    interrupted = len(reads) + 6
    converse("Ty", "In", "What", max_new_tokens=4)
    # One token of the second answer stays.
    assert reads[interrupted:] == [(3 + 4) + (3 + 1) + 5, 1, 1, 1]


def test_the_speed(trained, capsys, monkeypatch):
    """Catches a speed that counts the wait for the prompt."""
    clock = iter([0.0, 2.0, 4.0])  # before the prompt, after the first tokens, at the end
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    sample(SampleConfig(out_dir=trained, device="cpu", max_new_tokens=3, num_samples=2))
    assert "first token after 2.00 s, then 2.0 tokens/s" in capsys.readouterr().err


def test_ctrl_c(trained, tmp_path):
    """Catches a traceback, and text that an interrupt loses."""
    command = ["sample.py", f"--out_dir={trained}", "--device=cpu"]
    command += ["--max_new_tokens=100000", "--num_samples=2", "--start=Tyger"]
    output = tmp_path / "output"
    with open(output, "w") as file, text_file() as errors:
        pid = forked(command, file, errors)
        while len(output.read_text()) < 20:
            time.sleep(0.01)
        os.kill(pid, signal.SIGINT)
        assert exit_code(pid) == 130 and "Traceback" not in read_back(errors)
    first, second = output.read_text().split("---------------")
    assert first.startswith("Tyger") and len(second.strip()) > 5  # as far as it came


REFUSED = {
    "--interactive --system=a": "no chat template",
    "--system=a": "system is for --interactive",
    "--start=Tyger ß": "'ß' .* at position 6",
    "--start=": "no tokens",
    "--start=FILE:nowhere.txt": "nowhere.txt",
    f"--prompts={__file__}": "--prompts, line 1",
    "--start=\udcff": "--start: .*surrogates not allowed",
    "--out_dir=nowhere": "no checkpoint in nowhere",
    "--base=nowhere": "base=nowhere is for a LoRA adapter",
    "--init_from=nowhere --checkpoint=best": "checkpoint=best: there are none in nowhere",
    "--num_samples=0": "num_samples",
    "--stop=": "stop",
    "--interactive --start=a": "interactive",
    "--prompts=a --start=b": "prompts",
    f"--seed={2**32}": "seed",
    "--temperature=nan": "temperature",
    "--top_k=-1": "top_k",
    "--top_p=0.0": "top_p",
    "--min_p=2.0": "min_p",
}


@parametrize("flag", REFUSED)
def test_what_cannot_be_sampled(trained, flag):
    """Catches a traceback, an error of torch, or text that is made up, for a prompt, a folder or a
    setting; and a user who is not told which setting is the prompt.
    """
    flags = [f"--out_dir={trained}", "--device=cpu", *re.split(" (?=--)", flag)]
    with pytest.raises((ValueError, OSError), match=REFUSED[flag]):
        sample(parse_settings(SampleConfig, flags))
