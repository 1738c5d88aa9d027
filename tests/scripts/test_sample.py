"""Sampling from a checkpoint folder, as a user does it."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types

import pytest
import torch
from conftest import POEM, ROOT, complaint, forked, hugging_face_folder, run_here, tiny

from engine.common.settings import parse_settings
from engine.decoding import compiled
from engine.decoding import meter as meter_module
from engine.decoding.generator import Generator
from engine.decoding.meter import Meter
from engine.decoding.text import Text
from engine.text import dataset
from engine.text import tokenizer as tokenizer_module
from engine.weights import checkpoint
from model import GPT, GPTConfig
from sample import SampleConfig, sample
from train import TrainConfig, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint folder, far away from the data that it was trained on (which is deleted)."""
    folder = tmp_path_factory.mktemp("trained")
    dataset.write_dataset(folder / "poem", [POEM * 30], "char", "a poem")
    train(
        TrainConfig(
            block_size=32,
            n_layer=2,
            n_head=2,
            n_embd=32,
            batch_size=8,
            max_iters=300,
            warmup_iters=5,
            learning_rate=1e-2,
            vocab_size=64,
            device="cpu",
            dataset=str(folder / "poem"),
            out_dir=str(folder / "out"),
        )
    )
    shutil.rmtree(folder / "poem")
    return folder / "out"


def written(capsys, trained, **changes):
    capsys.readouterr()
    sample(SampleConfig(**dict(out_dir=str(trained), device="cpu", max_new_tokens=80) | changes))
    return capsys.readouterr().out


def test_it_writes_what_it_learned(trained, capsys):
    """Catches a checkpoint that does not hold the model or its tokenizer: the poem must come back from memory."""
    assert "In the forests of the night;" in written(
        capsys, trained, start="Tyger Tyger, ", temperature=0
    )


def test_the_same_seed_writes_the_same_text(trained, capsys):
    """Catches chance from anywhere but the seed, and samples that depend on how many there are."""
    one = written(capsys, trained, seed=3, temperature=2.0)
    torch.rand(5)
    assert (
        written(capsys, trained, seed=3, temperature=2.0)
        == one
        != written(capsys, trained, seed=4, temperature=2.0)
    )
    two = written(capsys, trained, seed=3, temperature=2.0, num_samples=2)
    assert (
        two.startswith(one.rstrip("\n"))
        and written(capsys, trained, seed=4, temperature=2.0).strip() in two
    )


def test_padded_ids_are_never_drawn(trained, capsys):
    """Catches ids that have no text: the model has 64, the tokenizer about 30."""
    text = written(capsys, trained, temperature=1e4, top_k=0, max_new_tokens=500)
    assert len(text) >= 500
    assert GPT.from_checkpoint(checkpoint.find_checkpoint(trained)).config.vocab_size == 64


def test_top_k(trained, capsys):
    """Catches top_k=0 that means none: with 1 it is greedy, with 0 every character is possible."""
    greedy = written(capsys, trained, temperature=0)
    assert (
        written(capsys, trained, top_k=1, temperature=5.0)
        == greedy
        != written(capsys, trained, top_k=0, temperature=5.0)
    )


def test_the_command_line(trained, tmp_path):
    """Catches a script that needs anything but the folder, or that does not print the prompt as given."""
    (tmp_path / "prompt.txt").write_text("What immortal", encoding="utf-8")
    result = run_here(
        "sample.py",
        f"--out_dir={trained}",
        f"--start=FILE:{tmp_path / 'prompt.txt'}",
        "--max_new_tokens=9",
    )
    assert result.returncode == 0 and result.stdout.startswith("What immortal"), result.stderr
    assert len(result.stdout.rstrip("\n")) == len("What immortal") + 9


def test_a_text_does_not_depend_on_its_neighbours(trained, tmp_path, capsys):
    """Catches batches in which a text changes with how many there are, their order, their prompts or the batch size."""
    prompts = ["Tyger", "In the forests of the night", "C"]
    alone = {prompt: [] for prompt in prompts}
    for prompt in prompts:
        for seed in (5, 6):
            text = written(capsys, trained, start=prompt, seed=seed, temperature=1.5)
            assert text.startswith(prompt)
            alone[prompt].append(text.removesuffix("\n").removeprefix(prompt))
    for order, batch_size in ((prompts, 64), (prompts[::-1], 4), (prompts, 1)):
        (tmp_path / "prompts.txt").write_text("\n".join(order), encoding="utf-8")
        lines = [
            json.loads(line)
            for line in written(
                capsys,
                trained,
                prompts=str(tmp_path / "prompts.txt"),
                num_samples=2,
                seed=5,
                temperature=1.5,
                json=True,
                batch_size=batch_size,
            ).splitlines()
        ]
        assert len(lines) == 6
        for n, line in enumerate(lines):
            assert line["text"] == alone[line["prompt"]][n % 2]
    short = [
        json.loads(line)["text"]
        for line in written(  # prompts of all lengths in one batch: none outgrows the context
            capsys,
            trained,
            prompts=str(tmp_path / "prompts.txt"),
            seed=5,
            temperature=1.5,
            json=True,
            max_new_tokens=4,
        ).splitlines()
    ]
    assert short == [alone[prompt][0][:4] for prompt in prompts]


def test_the_first_text_is_written_first():
    """Catches a screen that stands still while texts that come later are written."""
    config = SampleConfig(batch_size=2, max_new_tokens=4)
    generator = Generator(tiny(), None, config)
    texts = [Text(None, ids=range(length)) for length in (9, 2, 9, 2, 9)]
    first, second, third, fourth, fifth = texts
    assert generator.batches(texts) == [[first, second], [third, fourth], [fifth]]
    config.max_new_tokens = 20
    assert generator.batches(texts) == [[first, third], [fifth], [second, fourth]]


def test_json_lines(trained, capsys):
    """Catches log-probabilities of another token or another distribution, and a text that is not that of its tokens."""
    line = json.loads(
        written(
            capsys, trained, start="Tyger", json=True, max_new_tokens=9, top_k=3, temperature=2.0
        )
    )
    model, tokenizer = (
        GPT.from_checkpoint(checkpoint.find_checkpoint(trained)),
        checkpoint.load_tokenizer(checkpoint.find_checkpoint(trained)),
    )
    ids = torch.tensor([*tokenizer.encode("Tyger").tolist(), *line["tokens"]])[None]
    expected = model.eval()(ids, ids)[0][0, 4:-1, : tokenizer.vocab_size].log_softmax(-1)
    expected = expected.gather(1, ids[0, 5:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(line["logprobs"]), expected, rtol=0, atol=1e-4)
    assert (
        line["prompt"] == "Tyger"
        and line["ended"] == "length"
        and tokenizer.decode(line["tokens"]) == line["text"]
    )


def test_stop_strings(trained, capsys):
    """Catches a stop string that is printed, in part or as a whole, or that is missed across tokens."""
    likeliest = dict(start="Tyger Tyger, ", temperature=0)
    text = written(capsys, trained, **likeliest)
    assert (
        written(capsys, trained, **likeliest, stop=("of the", "zzz"))
        == text.split("of the")[0] + "\n"
    )
    two = written(capsys, trained, **likeliest, num_samples=2, stop=("of the",))
    assert two.count("---------------") == 1 and two.count("forests") == 2 and "of t" not in two
    line = json.loads(written(capsys, trained, **likeliest, stop=("of the",), json=True))
    assert line["ended"] == "stop" and line["text"].endswith("forests ")


class Pieces(tokenizer_module.Tokenizer):
    """Tokens of any bytes; 9 ends a text."""

    vocab_size, end_of_text = 10, 9
    pieces = {
        0: b"a",
        1: b"ab",
        2: b"b",
        3: "\u00e9".encode()[:1],
        4: "\u00e9".encode()[1:],
        5: b"xyz",
    }

    def token_bytes(self, token):
        return self.pieces[token]


@pytest.mark.parametrize(
    "stop, tokens, shown, ended",
    [
        ((), [0, 1, 2], ["a", "ab", "b"], None),
        (("aab",), [0, 0, 1, 5], ["", "", "a", ""], "stop"),
        (("abb",), [1, 0, 5, 1, 2, 5], ["", "ab", "axyz", "", "", ""], "stop"),
        (("yz", "y"), [0, 5, 0], ["a", "x", ""], "stop"),
        ((), [3, 4, 3], ["", "\u00e9", ""], None),
        (("\u00e9",), [0, 3, 4, 0], ["a", "", "", ""], "stop"),
        (("ab",), [0, 9, 0], ["", "a", ""], "end_of_text"),
        ((), [3, 9], ["", "\ufffd"], "end_of_text"),
    ],
)
def test_what_is_shown_when(stop, tokens, shown, ended):
    """Catches half a character, the beginning of a stop string, or text after the end, at the moment it could be seen."""
    writer = Text(Pieces(), stop)
    for token, shown_now in zip(tokens, shown):
        writer.add(token)
        assert writer.unshown() == shown_now
    assert writer.ended == ended


@pytest.mark.parametrize(
    "change", [dict(draft="ngram"), dict(draft="itself"), dict(draft="ngram", num_samples=3)]
)
def test_drafts_change_the_speed_only(trained, capsys, change):
    """Catches guesses that reach the text, with chance and without."""
    change = change | {"draft": str(trained)} if change["draft"] == "itself" else change
    for temperature in (0.0, 1.0):
        plain = written(
            capsys, trained, temperature=temperature, num_samples=change.get("num_samples", 1)
        )
        assert written(capsys, trained, temperature=temperature, **change) == plain


def test_prompts_from_a_pipe_and_a_summary(trained):
    """Catches a standard input that is not read, and figures that mix with the text."""
    command = [
        "sample.py",
        f"--out_dir={trained}",
        "--temperature=0",
        "--max_new_tokens=8",
        "--device=cpu",
    ]
    for flag, text, begin in (
        ("--start=-", "What immortal", "What immortal"),
        ("--prompts=-", "What\nCould frame", "What"),
    ):
        result = run_here(*command, flag, typed=text)
        assert result.returncode == 0 and result.stdout.startswith(begin), result.stderr
        assert "tokens/s" in result.stderr and "tokens/s" not in result.stdout
        assert result.stdout.count("---------------") == text.count("\n")


def test_a_conversation(trained):
    """Catches a session that forgets the turns before, dies of a bad line, does not end with its input, or says no speed."""
    command = [
        "sample.py",
        f"--out_dir={trained}",
        "--interactive=True",
        "--temperature=0",
        "--stop=\n",
    ]
    turns = (
        "Tyger Tyger, burning bright,\n\u00df\nWhat immortal hand or eye,\n" + "Could frame\n" * 6
    )
    command += ["--max_new_tokens=28", "--draft=ngram"]
    result = run_here(*command, typed=turns)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert (
        lines[0] == "In the forests of the night;"
        and lines[1] == "Could frame thy symmetry?"
        and len(lines) == 9
    )
    assert (
        "U+00DF" in result.stderr
        and "tokens/s" in result.stderr
        and "Traceback" not in result.stderr
    )


def test_a_conversation_is_read_once(trained, monkeypatch):
    """Catches turns that read again what the cache holds, and an answer that, interrupted, takes the next turns with it."""
    reads, hidden = [], GPT.hidden

    def typed(prompt=""):
        if line := next(lines, None):
            return line
        raise EOFError

    def counted(self, idx, *rest):
        reads.append(idx.shape[1])
        if len(reads) == interrupted:
            raise KeyboardInterrupt
        return hidden(self, idx, *rest)

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(GPT, "hidden", counted)
    interrupted, options = (
        None,
        dict(
            out_dir=str(trained), device="cpu", interactive=True, temperature=0.0, max_new_tokens=4
        ),
    )
    lines = iter(["Ty", "In", "What"])
    sample(SampleConfig(**options))
    assert sum(reads) == (3 + 4) + (3 + 4) + (5 + 4) - 1  # the last token of all is never read
    lines, interrupted = iter(["Ty", "In", "What"]), len(reads) + 6
    sample(SampleConfig(**options))
    assert reads[interrupted:] == [
        (3 + 4) + (3 + 1) + 5,
        1,
        1,
        1,
    ]  # of the second answer one token stays, and all is read anew


def test_the_summary_is_arithmetic(monkeypatch):
    """Catches a speed that counts the wait for the prompt."""
    clock = iter([0.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: next(clock))
    meter = Meter()
    tokens = [(torch.zeros(2, dtype=torch.long), None)] * 3
    assert len(list(meter.timed(types.SimpleNamespace(compiled=None), tokens))) == 3
    texts = [types.SimpleNamespace(tokens=[0, 0, 0])] * 2
    assert meter.summary(texts) == "first token after 2.00 s, then 2.0 tokens/s"


def test_a_line_that_is_not_text(trained):
    """Catches a conversation that loses all that was typed because of one line that is not UTF-8."""
    command = [
        sys.executable,
        "sample.py",
        f"--out_dir={trained}",
        "--interactive=True",
        "--temperature=0",
        "--stop=\n",
    ]
    command += ["--max_new_tokens=1000000000000"]
    result = subprocess.run(
        command, cwd=ROOT, input=b"caf\xe9\nWhat immortal\n", capture_output=True, env=os.environ
    )
    assert result.returncode == 0 and result.stdout.strip(), result.stderr.decode()
    assert b"what you typed: 'utf-8' codec" in result.stderr


def test_a_closed_pipe_and_ctrl_c(trained):
    """Catches a traceback when the reader has seen enough, and text that is lost when the writer has."""
    command = [
        sys.executable,
        "-u",
        "sample.py",
        f"--out_dir={trained}",
        "--max_new_tokens=100000",
        "--device=cpu",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read(20)
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0 and "Traceback" not in errors and "BrokenPipe" not in errors
    more = ["--num_samples=2", "--start=Tyger"]
    with subprocess.Popen(
        [*command, *more], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        begin = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors
    assert (begin + rest).startswith("Tyger") and rest.count("---------------") == 1
    assert (
        len(rest.split("---------------")[1].strip()) > 5
    )  # the second text too, as far as it came


@pytest.fixture
def other_words(tmp_path):
    """A checkpoint with another vocabulary."""
    dataset.write_dataset(tmp_path / "other", ["what else " * 300], "byte", "other words")
    train(
        TrainConfig(
            block_size=16,
            n_layer=1,
            n_head=1,
            n_embd=16,
            batch_size=2,
            max_iters=0,
            device="cpu",
            draw_loss=False,
            dataset=str(tmp_path / "other"),
            out_dir=str(tmp_path / "out"),
        )
    )
    return str(tmp_path / "out")


def test_a_draft_with_another_vocabulary(trained, other_words):
    """Catches guesses in other words."""
    with pytest.raises(ValueError, match="another tokenizer"):
        sample(SampleConfig(out_dir=str(trained), device="cpu", draft=other_words))
    with pytest.raises(ValueError, match="draft=nowhere is neither ngram nor the folder"):
        sample(SampleConfig(out_dir=str(trained), device="cpu", draft="nowhere"))


def test_linear_attention_neither_guesses_nor_compiles(tmp_path, poem):
    """Catches a state that guesses have spoiled, and a step that was asked to be compiled and silently is not."""
    train(
        TrainConfig(
            attention="linear",
            window=0,
            block_size=16,
            n_layer=1,
            n_head=1,
            n_embd=16,
            max_iters=0,
            device="cpu",
            draw_loss=False,
            dataset=poem,
            out_dir=str(tmp_path / "out"),
        )
    )
    with pytest.raises(ValueError, match="cannot be compiled"):
        sample(SampleConfig(out_dir=str(tmp_path / "out"), device="cpu", compile=True))


def test_when_sampling_compiles(trained, capsys, monkeypatch):
    """Catches a rule that counts texts that are written together as if they came one after another, or overrules a setting."""
    asked = []
    monkeypatch.setattr(compiled, "worth_compiling", lambda device, passes: asked.append(passes))
    written(capsys, trained, num_samples=5, batch_size=2, max_new_tokens=3)
    written(capsys, trained, num_samples=2, draft="ngram", max_new_tokens=3)
    written(capsys, trained, compile=False, max_new_tokens=3)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    written(capsys, trained, interactive=True)
    assert asked == [9, 6, math.inf]


def test_published_weights(trained, tmp_path, gpt2_files, capsys):
    """Catches weights in Hugging Face's layout that cannot be sampled as they are, or with a tokenizer that is not theirs."""
    model = GPT(GPTConfig(block_size=16, vocab_size=50257, n_layer=1, n_head=1, n_embd=8))
    hugging_face_folder(tmp_path, model, vocab_size=50257, n_layer=1, n_head=1, n_embd=8)
    line = json.loads(
        written(
            capsys, "nowhere", init_from=str(tmp_path), start="What is", json=True, max_new_tokens=5
        )
    )
    idx = torch.tensor(
        [tokenizer_module.create_tokenizer("gpt2").encode("What is").tolist() + line["tokens"]]
    )
    expected = model(idx, idx)[0][0, 1:-1].log_softmax(-1).gather(1, idx[0, 2:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(line["logprobs"]), expected, rtol=0, atol=1e-4)
    hugging_face_folder(tmp_path, tiny())
    with pytest.raises(ValueError, match="33 token ids, and its tokenizer 50,257"):
        sample(SampleConfig(init_from=str(tmp_path), device="cpu"))
    same = dict(start="Tyger", max_new_tokens=5)
    assert written(capsys, "nowhere", init_from=str(trained), **same) == written(
        capsys, trained, **same
    )


def test_a_prompt_longer_than_the_context(trained, capsys):
    """Catches a long prompt that is refused, where generate accepts it, or cut in silence."""
    long = "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal "
    out = written(capsys, trained, start=long, temperature=0, max_new_tokens=12)
    assert out.startswith(long) and len(out) > len(long)
    sample(SampleConfig(out_dir=str(trained), device="cpu", start=long, max_new_tokens=2))
    assert f"--start has {len(long)} tokens; the model reads the last 32" in capsys.readouterr().err


def test_a_prompt_from_windows(trained, tmp_path):
    """Catches a byte order mark or a carriage return that the tokenizer does not know."""
    (tmp_path / "prompt.txt").write_bytes("\ufeffTyger\r\nTyger".encode())
    command = ["sample.py", f"--out_dir={trained}", "--max_new_tokens=3", "--device=cpu"]
    typed = (tmp_path / "prompt.txt").read_bytes().decode()
    for flag in f"--start=FILE:{tmp_path / 'prompt.txt'}", "--start=-":
        result = run_here(*command, flag, typed=typed)
        assert result.returncode == 0 and result.stdout.startswith("Tyger\nTyger"), result.stderr
    result = run_here(*command, "--interactive", typed=typed)
    assert result.returncode == 0 and "character" not in result.stderr, result.stderr


def test_a_default_prompt_that_the_tokenizer_knows(tmp_path, capsys):
    """Catches the suggested command failing for a text of one line."""
    dataset.write_dataset(tmp_path / "line", ["abcabcbca" * 60], "char", "a line")
    train(
        TrainConfig(
            block_size=16,
            n_layer=1,
            n_head=1,
            n_embd=16,
            batch_size=2,
            max_iters=0,
            device="cpu",
            write_tokens=0,
            dataset=str(tmp_path / "line"),
            out_dir=str(tmp_path / "my out"),
        )
    )
    assert f"python sample.py --out_dir='{tmp_path / 'my out'}'" in capsys.readouterr().out
    sample(SampleConfig(out_dir=str(tmp_path / "my out"), device="cpu", max_new_tokens=3))
    assert capsys.readouterr().out.startswith("a")


def on_a_terminal(*command):
    """What a script of the repository shows on a terminal, as text with line ends as \n."""
    master, slave = os.openpty()
    with open(slave, "wb", buffering=0) as terminal, tempfile.TemporaryFile() as errors:
        pid = forked(command, terminal, errors)
        terminal.close()  # the fork's alone, so that it has an end
        shown = b""
        with contextlib.suppress(OSError):  # the end
            while piece := os.read(master, 4096):
                shown += piece
        errors.seek(0)
        assert os.waitpid(pid, 0)[1] == 0, errors.read()
    os.close(master)
    return shown.decode().replace("\r\n", "\n")


def test_control_characters_on_a_terminal(tmp_path):
    """Catches bytes that a terminal would obey, and files that are not exact."""
    dataset.write_dataset(
        tmp_path / "data", ["".join(map(chr, range(256))) * 40], "char", "all of them"
    )
    flags, tiny_run = (
        ["--device=cpu", f"--out_dir={tmp_path / 'out'}"],
        ["--max_iters=0", "--n_layer=1", "--n_embd=16"],
    )
    training = on_a_terminal("train.py", *flags, f"--dataset={tmp_path / 'data'}", *tiny_run)
    texts = (
        training[training.index("Now it writes") :],
        *(
            on_a_terminal("sample.py", *flags, "--start=a\x1b[2J\tb\n\x07", *more)
            for more in ([], ["--json"])
        ),
    )
    for text in texts:
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) and re.search(
            r"\\u00[019]", text
        )
    assert (
        texts[1].startswith("a\\u001b[2J\tb\n\\u0007")
        and json.loads(texts[2])["prompt"] == "a\x1b[2J\tb\n\x07"
    )
    exact = run_here("sample.py", *flags, "--start=a\x1b[2J\tb\n\x07").stdout
    assert exact.startswith("a\x1b[2J\tb\n\x07") and len(exact) < len(texts[1])


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(start="Tyger ß"), "'ß' .* at position 6"),
        (dict(start=""), "no tokens"),
        (dict(start="FILE:nowhere.txt"), "nowhere.txt"),
        (dict(prompts="nowhere.txt"), "nowhere.txt"),
        (dict(prompts=os.devnull), "--prompts, line 1 has no tokens"),
        (dict(prompts=__file__), "--prompts, line 1"),
        (dict(start="\udcff"), "surrogates not allowed"),
        (dict(out_dir="nowhere"), "no checkpoint in nowhere"),
        (dict(checkpoint="step_5"), "no checkpoint step_5"),
    ],
)
def test_what_cannot_be_sampled(trained, change, message):
    """Catches a traceback, or text that is made up, for a prompt or a folder that cannot be used."""
    with pytest.raises((ValueError, OSError), match=message):
        sample(SampleConfig(**dict(out_dir=str(trained), device="cpu") | change))


@pytest.mark.parametrize(
    "change",
    [
        dict(num_samples=0),
        dict(max_new_tokens=0),
        dict(max_new_tokens=-3),
        dict(temperature=-1.0),
        dict(top_k=-1),
        dict(top_p=0.0),
        dict(top_p=1.1),
        dict(min_p=-1.0),
        dict(repetition_penalty=0.0),
        dict(stop=("",)),
        dict(guesses=0),
        dict(batch_size=0),
        dict(interactive=True, json=True),
        dict(interactive=True, start="a"),
        dict(prompts="a", start="b"),
        dict(seed=-1),
        dict(seed=2**32),
    ],
)
def test_settings_that_cannot_be(change):
    """Catches impossible settings that surface as an error of torch."""
    with pytest.raises(ValueError, match=next(iter(change))):
        SampleConfig(**change)


def test_several_stop_strings():
    """Catches --stop that keeps the last one only."""
    assert parse_settings(SampleConfig, ["--stop=a", "--stop=b c"]).stop == ("a", "b c")


def test_one_line_at_the_command_line(trained):
    """Catches a traceback at the place where users meet it."""
    assert "at position 3" in complaint(
        run_here("sample.py", f"--out_dir={trained}", "--start=and€")
    )
