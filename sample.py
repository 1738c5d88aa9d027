"""Text from a trained model, printed as it is generated.

    python sample.py [--out_dir=out] [--start="Once upon" | --start=FILE:prompt.txt] [--key=value ...]
    python sample.py --init_from=gpt2                      published weights

Reads nothing but the checkpoint folder. Text goes to the standard output; its speed, to the standard error.
"""

import codecs
import contextlib
import json
import math
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C while torch is imported ends without a traceback

import torch

from attention import ATTENTION
from engine.common import hardware
from engine.common.checks import at_least
from engine.common.device import pick_device
from engine.common.errors import escape_control_characters, one_line_errors
from engine.common.settings import parse_settings
from engine.decoding import quantization
from engine.decoding.generation import (
    Draft,
    RandomStream,
    Sampling,
    Session,
    compiled_decode,
    ngram,
    stream,
)
from engine.weights import checkpoint, pretrained
from model import GPT


@dataclass(kw_only=True)
class SampleConfig(Sampling):
    out_dir: str = "out"
    """The folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best (lowest validation loss), or a name such as step_002000."""
    init_from: str = "resume"
    """resume: a checkpoint in out_dir; or what GPT.from_pretrained reads: another such folder, one in Hugging Face's layout or
    with nanoGPT's ckpt.pt, or a published model by its name, gpt2 or OWNER/NAME."""
    start: str = "\n"
    """The prompt; FILE:name reads it from a file, and - from the standard input. Default: a line break, if the tokenizer
    has one."""
    prompts: str = ""
    """A file with a prompt in each line, or - for the standard input: all of them are continued together."""
    interactive: bool = False
    """You type, the model answers and remembers the conversation. End with Ctrl-D."""
    num_samples: int = 1
    """Texts to write from each prompt."""
    max_new_tokens: int = 500
    """Tokens to write in each, at most."""
    temperature: float = 0.8
    top_k: int = 200
    stop: tuple[str, ...] = ()
    """End a text before this string; may be given several times."""
    seed: int = 1337
    """The same seed gives the same text, whatever is written beside it (but for rounding, which can differ with the length
    and number of texts, and between processors). Sample n of several has seed + n."""
    json: bool = False
    """Print one line of JSON for each text: prompt, text, tokens, their log-probabilities, and why it ended."""
    batch_size: int = 64
    """How many texts are written at a time."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best there is."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights: float32, bfloat16, float16, or auto: bfloat16 on a GPU, float16 on one without units for it; on an x86
    CPU float16 for a model too large for its cache (the arithmetic stays in float32); else float32."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile the decoding step, with CUDA graphs; auto: on a GPU, to write 10,000 tokens or more one after another, or
    interactively, if the checkpoint's attention allows it."""
    quantize: Literal["none", "int8"] = "none"
    """int8: a quarter of the bytes of float32, at the cost of some precision; or none."""
    draft: str = ""
    """Guess tokens and read several at once, which changes the speed but not the text: ngram (what followed before), or the
    folder of a smaller model with the same tokenizer, as for init_from. (But for rounding, as with the seed.)"""
    guesses: int = 8
    """draft: tokens to guess at a time."""
    verbose: bool = False
    """Say what the start took."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "num_samples", "max_new_tokens", "batch_size", "guesses")
        if not all(self.stop):
            raise ValueError(
                "stop='' is empty and would end each text before it begins: leave it out"
            )
        at_least(0, self, "seed", most=2**32 - 1)  # what a generator on a CPU makes use of
        if self.interactive and (
            self.json or self.prompts or self.start != "\n" or self.num_samples != 1
        ):
            raise ValueError(
                "interactive: you type the prompts; leave out start, prompts, num_samples and json"
            )
        if self.prompts and self.start != "\n":
            raise ValueError(f"prompts={self.prompts} and start={self.start!r}: give one of them")


def read_text(name, flag):
    """The text of a file, or of the standard input (-), with line ends as \\n and without a byte order mark."""
    if name == "-" and sys.stdin is None:
        raise ValueError(f"{flag}: the standard input is closed")
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ValueError(f"{flag}: cannot read {error.filename} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{flag}: {name} is not UTF-8 text (offset {error.start})") from None


def read_prompts(config):
    """{where the prompt comes from, for error messages: its text}."""
    if not config.prompts:
        if config.start.startswith("FILE:") or config.start == "-":
            if config.start == "FILE:":
                raise ValueError(
                    "--start=FILE: needs the name of a file, as in --start=FILE:prompt.txt"
                )
            return {"--start": read_text(config.start.removeprefix("FILE:"), "--start")}
        return {"--start": config.start}
    prompts = read_text(config.prompts, "--prompts")
    if not prompts:
        raise ValueError(f"--prompts={config.prompts} is empty: give one prompt in each line")
    return {
        f"--prompts, line {n}": prompt
        for n, prompt in enumerate(prompts.removesuffix("\n").split("\n"), 1)
    }


def encode_prompt(tokenizer, text, most, flag, begin=()):
    """Ids (T,) of a prompt after those of begin, at most the last `most`; ValueError if it is empty or cannot be encoded."""
    try:
        ids = tokenizer.encode(text, allow_special=True).tolist()
    except UnicodeEncodeError as error:
        raise ValueError(f"{flag} is not valid Unicode text (position {error.start})") from None
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
    begin = [] if ids[: len(begin)] == [*begin] else [*begin]
    if not begin + ids:
        raise ValueError(f"{flag} has no tokens: this model needs at least 1")
    if (most := most - len(begin)) < len(ids):
        print(
            f"note: {flag} has {len(ids)} tokens; the model reads the last {most}", file=sys.stderr
        )
    return torch.tensor(begin + ids[-most:])


def default_start(tokenizer):
    """The prompt if none is given: a line break, or else what the tokenizer's first id stands for."""
    try:
        return "\n" if len(tokenizer.encode("\n")) else tokenizer.decode([0])
    except ValueError:
        return tokenizer.decode([0])


class Writer:
    """One text as its tokens arrive: complete characters, and nothing from a stop string on."""

    def __init__(self, tokenizer, stop):
        self.tokenizer, self.stop = tokenizer, stop
        self.utf8 = codecs.getincrementaldecoder("utf-8")(
            errors="replace"
        )  # holds back the bytes of an incomplete character
        self.text, self.shown, self.ended = "", 0, None
        self.tokens, self.logprobs = [], []

    def add(self, token, logprob=None):
        """Append a token, unless the text has ended."""
        if self.ended:
            return
        if token == self.tokenizer.end_of_text:
            return self.end("end_of_text")
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.write(self.utf8.decode(self.tokenizer.token_bytes(token)))

    def write(self, piece):
        before, self.text = len(self.text), self.text + piece
        found = [self.text.find(s, max(0, before - len(s) + 1)) for s in self.stop]
        if any(where >= 0 for where in found):
            self.text, self.ended = self.text[: min(where for where in found if where >= 0)], "stop"

    def end(self, why):
        """No more tokens will arrive."""
        if not self.ended:
            self.write(self.utf8.decode(b"", final=True))
            self.ended = self.ended or why

    def unshown(self):
        """Text that can be shown now and has not been; what may be the beginning of a stop string is held back."""
        until = len(self.text)
        if not self.ended:
            beginnings = (
                n for s in self.stop for n in range(len(s) - 1, 0, -1) if self.text.endswith(s[:n])
            )
            until -= max(beginnings, default=0)
        piece, self.shown = self.text[self.shown : until], max(self.shown, until)
        return piece


class Printer:
    """Shows the texts in order: the first that has not ended as it grows, the others after it."""

    def __init__(self, prompts, writers, as_json):
        self.texts, self.as_json, self.now, self.begun = (
            list(zip(prompts, writers)),
            as_json,
            0,
            False,
        )

    def show(self):
        while self.now < len(self.texts):
            prompt, writer = self.texts[self.now]
            if self.as_json and writer.ended:
                line = {"prompt": prompt, "text": writer.text, "ended": writer.ended}
                line |= {"tokens": writer.tokens, "logprobs": writer.logprobs}
                print(
                    escape_control_characters(
                        json.dumps(line, ensure_ascii=sys.stdout.encoding.lower() != "utf-8")
                    ),
                    flush=True,
                )
            elif not self.as_json:
                print(
                    escape_control_characters(("" if self.begun else prompt) + writer.unshown()),
                    end="",
                    flush=True,
                )
                self.begun = True
            if not writer.ended:
                return
            self.now, self.begun = self.now + 1, False
            if not self.as_json:
                print("\n---------------" if self.now < len(self.texts) else "", flush=True)

    def interrupt(self):
        """Show the texts that have begun, as far as they are."""
        self.texts = [(p, w) for n, (p, w) in enumerate(self.texts) if n <= self.now or w.tokens]
        for _, writer in self.texts:
            writer.end("interrupted")
        self.show()


class Meter:
    """Tokens per second, and what the memory's bandwidth allows.

    The first token of each text waits for the prompt, and with torch.compile the next two for the compiler: not counted.
    """

    def __init__(self, model, about, compiled=False):
        self.device, self.weights = (
            model.transformer.wte.weight.device,
            quantization.weight_bytes(model),
        )
        self.about, self.warm_up = about, 3 if compiled else 1
        self.seconds, self.bytes, self.uncounted, self.first_token_seconds = 0.0, 0, 0, None

    def timed(self, session, tokens):
        """The same (ids, logits), timed."""
        last, passes = time.perf_counter(), session.passes
        for n, (ids, logits) in enumerate(tokens):
            hardware.synchronize(ids.device)
            now = time.perf_counter()
            self.first_token_seconds = self.first_token_seconds or now - last
            if n < self.warm_up:
                self.uncounted += len(ids)
            else:
                self.seconds += now - last
                self.bytes += (session.passes - passes) * (
                    self.weights + sum(layer.nbytes for layer in session.cache or ())
                )
            last, passes = now, session.passes
            yield ids, logits

    def summary(self, writers):
        """One line about all texts."""
        tokens = sum(len(writer.tokens) for writer in writers) - self.uncounted
        if not (self.seconds and tokens > 0):
            return f"first token after {self.first_token_seconds or 0:.2f} s; {self.about}"
        summary = f"first token after {self.first_token_seconds:.2f} s, then {tokens / self.seconds:.1f} tokens/s; {self.about}"
        if self.weights < quantization.CACHE_BYTES:
            return summary
        speed = hardware.bandwidth(self.device)
        return (
            f"{summary}; reading {self.bytes / 1e9:.1f} GB of weights, keys and values at {speed / 1e9:.1f} GB/s would take "
            f"{self.bytes / speed / self.seconds:.0%} of that time"
        )


def read_model(folder):
    """The model in a folder and its tokenizer."""
    model = GPT.from_pretrained(folder)
    return model, pretrained.load_tokenizer(folder, model.config.vocab_size)


def load(config, texts):
    """The model, prepared to write this number of texts, its tokenizer, and its dtype and device in words."""
    device, imports, begun = pick_device(config.device), time.process_time(), time.perf_counter()
    ours = config.init_from == "resume"
    model, tokenizer = read_model(
        checkpoint.find_checkpoint(config.out_dir, config.checkpoint)
        if ours
        else pretrained.folder_of(config.init_from, config.checkpoint)
    )
    model.to(device)
    rows = 1 + config.guesses if config.draft else min(texts, config.batch_size) or 1
    rows = None if config.compile is True else rows
    dtype = quantization.best_dtype(model, rows) if config.dtype == "auto" else config.dtype
    read = time.perf_counter()
    model = quantization.prepare_for_inference(model, getattr(torch, dtype), config.quantize, rows)
    if config.verbose:
        print(
            f"start: {imports:.2f} s of processor time for imports, {read - begun:.2f} s to read and check the model, "
            f"{time.perf_counter() - read:.2f} s to lay out its weights",
            file=sys.stderr,
        )
    return model, tokenizer, f"{'int8' if config.quantize == 'int8' else dtype}, {device}"


def compiled_step(config, model, tokens):
    """The compiled decoding step, or None if the settings do not want one, or for auto if so many tokens in turn do not."""
    device, wanted = model.transformer.wte.weight.device, config.compile
    step = (
        compiled_decode(model)
        if (hardware.worth_compiling(device, tokens) if wanted == "auto" else wanted)
        else None
    )
    if config.compile is True and not step:
        raise ValueError(
            f"compile=True: attention={model.config.attention} cannot be compiled: leave it out"
        )
    return step


def make_guesser(config, model, tokenizer):
    """A function of a RandomStream that returns the guess(session, most) that decoding.stream takes, or None."""
    if not config.draft:
        return lambda random: None
    draft = model
    if config.draft != "ngram":
        if not Path(config.draft).is_dir():
            raise ValueError(f"draft={config.draft} is neither ngram nor the folder of a model")
        draft, other = read_model(pretrained.folder_of(config.draft))
        if other.spec() != tokenizer.spec():
            raise ValueError(
                f"--draft={config.draft} has another tokenizer than the model: it must be the same"
            )
        draft.to(model.transformer.wte.weight.device)
        dtype = quantization.best_dtype(draft) if config.dtype == "auto" else config.dtype
        draft = quantization.prepare_for_inference(draft, getattr(torch, dtype))
    for attention in (model.config.attention, draft.config.attention):
        if attention not in ATTENTION:
            raise ValueError(
                f"--draft: attention={attention} cannot forget what it has read: leave --draft out"
            )

    def guesser(random):
        guess = ngram if draft is model else Draft(draft, config, random, tokenizer.vocab_size)
        return lambda session, most: guess(session, min(most, config.guesses))

    return guesser


def batches(lengths, most, mixed):
    """Lists of at most `most` texts (by number) to write together, of equal length unless mixed, the first text first."""
    groups = {}
    for n, length in enumerate(lengths):
        groups.setdefault(None if mixed else length, []).append(n)
    for group in groups.values():
        yield from (group[n : n + most] for n in range(0, len(group), most))


def sample(config):
    """Print the texts; ValueError for a checkpoint or a prompt that cannot be used."""
    prompts = {} if config.interactive else read_prompts(config)
    model, tokenizer, about = load(config, len(prompts) * config.num_samples)
    guesser = make_guesser(config, model, tokenizer)
    if config.interactive:
        return converse(config, model, tokenizer, guesser, about)
    size, device = model.config.block_size, model.transformer.wte.weight.device
    if prompts == {"--start": SampleConfig.start}:
        prompts = {"--start": default_start(tokenizer)}
    ids = [
        encode_prompt(tokenizer, prompt, size, where, tokenizer.begin).to(device)
        for where, prompt in prompts.items()
    ]
    texts = [
        (n, config.seed + sample)
        for n in range(len(prompts))
        for sample in range(config.num_samples)
    ]
    writers = [Writer(tokenizer, config.stop) for _ in texts]
    printer = Printer([list(prompts.values())[n] for n, _ in texts], writers, config.json)
    lengths = [len(ids[n]) for n, _ in texts]
    # A full context moves on at a different time for each length, and then all texts of its batch are read again.
    mixed = model.config.attention in ATTENTION and max(lengths) + config.max_new_tokens <= size
    turns = [*batches(lengths, 1 if config.draft else config.batch_size, mixed)]
    step = compiled_step(config, model, len(turns) * config.max_new_tokens)
    meter = Meter(model, about, step is not None)
    session = None
    try:
        for numbers in turns:
            batch = [texts[n] for n in numbers]
            room = min(config.max_new_tokens, 2 * size)
            session = Session(model, [ids[n] for n, _ in batch], room, compiled=step, after=session)
            random = RandomStream([torch.Generator().manual_seed(seed) for _, seed in batch])
            tokens = stream(
                session,
                config.max_new_tokens,
                config,
                random,
                tokenizer.vocab_size,
                guesser(random),
            )
            write(meter.timed(session, tokens), [writers[n] for n in numbers], config.json, printer)
    except KeyboardInterrupt:
        printer.interrupt()
        print(meter.summary(writers), file=sys.stderr)
        raise
    print(meter.summary(writers), file=sys.stderr)


def write(tokens, writers, with_logprobs, printer):
    """Give tokens to the writers until all of them have ended."""
    with contextlib.closing(tokens):
        for token, logits in tokens:
            logprobs = [None] * len(token)
            if with_logprobs:
                logprobs = (
                    logits.float().log_softmax(dim=-1).gather(1, token[:, None])[:, 0].tolist()
                )
            for writer, *pair in zip(writers, token.tolist(), logprobs):
                writer.add(*pair)
            if all(writer.ended for writer in writers):
                break
            printer.show()
    for writer in writers:
        writer.end("length")
    printer.show()


def converse(config, model, tokenizer, guesser, about):
    """A line from the keyboard, an answer, and so on; the session keeps all of it."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() has a history then)
    if sys.stdin is None:
        raise ValueError("--interactive: the standard input is closed")
    if hasattr(sys.stdin, "reconfigure"):  # only a line that is not UTF-8 is refused
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline=None)
    device, session, step = (
        model.transformer.wte.weight.device,
        None,
        compiled_step(config, model, math.inf),
    )
    writers, meter = [], Meter(model, about, step is not None)
    random = RandomStream([torch.Generator().manual_seed(config.seed)])
    guess = guesser(random)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
            begin = () if session else tokenizer.begin
            ids = encode_prompt(
                tokenizer, line + "\n", model.config.block_size, "what you typed", begin
            ).to(device)
        except EOFError:
            print()
            return print(meter.summary(writers), file=sys.stderr)
        except ValueError as error:
            print(error, file=sys.stderr)
            continue
        session = session or Session(model, [ids[:0]], 2 * model.config.block_size, compiled=step)
        session.append(ids[None])
        begin, writer = session.length, Writer(tokenizer, config.stop)
        writers.append(writer)
        tokens = stream(session, config.max_new_tokens, config, random, tokenizer.vocab_size, guess)
        try:
            write(meter.timed(session, tokens), [writer], False, Printer([""], [writer], False))
        except KeyboardInterrupt:  # ends this answer
            session.forget()
            writer.end("interrupted")
            print(escape_control_characters(writer.unshown()))
        session.trim(begin + len(writer.tokens))


if __name__ == "__main__":
    with one_line_errors():
        sample(parse_settings(SampleConfig, sys.argv[1:]))
