"""Text from a trained model, printed as it is generated.

    python sample.py [--out_dir=out] [--start="Once upon" | --start=FILE:x.txt] [--key=value ...]
    python sample.py --init_from=gpt2                      published weights

Needs the checkpoint folder only, and no dataset. Text goes to the standard output, its speed to
the standard error.
"""

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from attention import ATTENTION
from engine import pretrained
from engine.chat import ChatTemplate
from engine.conversations import read_conversation
from engine.errors import at_least, one_line_errors
from engine.generation import Generator
from engine.hardware import pick_device
from engine.preparation import read_text
from engine.quantization import best_dtype, prepare_for_inference
from engine.sampling import Sampling
from engine.settings import parse_settings
from engine.text import Printer, Text, encode_prompt
from model import GPT

# --------------------------------------------------------------------------------------------------
# Settings


@dataclass(kw_only=True)
class SampleConfig(Sampling):
    out_dir: str = "out"
    """The folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best (lowest validation loss), or a name such as step_002000."""
    init_from: str = "resume"
    """resume: a checkpoint in out_dir; or what GPT.from_pretrained reads: another such folder, one
    in Hugging Face's layout, or a published model by its name, gpt2 or OWNER/NAME."""
    base: str = ""
    """Where the base of a LoRA adapter is, if it was moved alone."""
    start: str = "\n"
    """The prompt; FILE:name reads it from a file, and - from the standard input."""
    prompts: str = ""
    """A file with a prompt in each line, or - for the standard input: all of them are continued
    together. A model with a chat template answers lines of JSON with messages, as JSON."""
    interactive: bool = False
    """You type, the model answers and remembers the conversation. End with Ctrl-D. A model with a
    chat template answers by it, and /reset begins a new conversation."""
    system: str = ""
    """interactive: the message that tells a model with a chat template who it is."""
    num_samples: int = 1
    """Texts to write from each prompt."""
    max_new_tokens: int = 500
    """Tokens to write in each, at most."""
    temperature: float = 0.8
    top_k: int = 200
    stop: tuple[str, ...] = ()
    """End a text before this string; may be given several times."""
    seed: int = 1337
    """The same seed gives the same text, whatever is written beside it (but for rounding, which can
    differ with the length and number of texts, and between processors). Sample n of several has
    seed + n."""
    json: bool = False
    """Print one line of JSON for each text: prompt, text, tokens, their log-probabilities, and why
    it ended."""
    batch_size: int = 64
    """Texts to write at a time."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best there is."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights: float32, bfloat16, float16, or auto: bfloat16 on a GPU, float16 on one
    without units for it; on an x86 CPU float16 for a model too large for its cache (the arithmetic
    stays in float32); else float32."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile the decoding step, with CUDA graphs; auto: on a GPU, to write 6,000 tokens or
    more one after another, if the checkpoint's attention allows it."""
    quantize: Literal["none", "int8"] = "none"
    """int8: a quarter of the bytes of float32, at the cost of some precision; or none."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "num_samples", "max_new_tokens", "batch_size", most=10**7)
        at_least(0, self, "seed", most=2**32 - 1)  # the seeds of a generator on a CPU
        if "" in self.stop:
            raise ValueError("stop='' would end each text before it begins: leave it out")
        other_prompts = self.prompts or self.start != "\n" or self.num_samples != 1
        if self.interactive and (self.json or other_prompts):
            raise ValueError(
                "interactive: you type the prompts; leave out start, prompts, num_samples and json"
            )
        if self.system and not self.interactive:
            raise ValueError("system is for --interactive; in prompts, it is a message")
        if self.prompts and self.start != "\n":
            raise ValueError(f"prompts={self.prompts} and start={self.start!r}: give one of them")


# --------------------------------------------------------------------------------------------------
# Prompts


def read_prompts(config):
    """Return {where a prompt comes from, for error messages: its text}."""
    text = config.start
    if config.prompts or text == "-" or text.startswith("FILE:"):
        text = read_text(config.prompts or text.removeprefix("FILE:"))
    if not config.prompts:
        return {"--start": text}
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), 1)
    prompts = {f"--prompts, line {n}": line for n, line in lines if line}
    if not prompts:
        raise ValueError(f"prompts={config.prompts} has no line with a prompt")
    return prompts


# --------------------------------------------------------------------------------------------------
# The model


def make_generator(config):
    """Return the Generator, and its dtype and device in words."""
    device = pick_device(config.device)
    folder = pretrained.folder_in(config)
    model = GPT.from_pretrained(folder, base=config.base)
    tokenizer = pretrained.load_tokenizer(folder, model.config.vocab_size)
    model = model.to(device)
    dtype = best_dtype(model) if config.dtype == "auto" else config.dtype
    model = prepare_for_inference(model, getattr(torch, dtype), config.quantize)
    pads = model.config.attention in ATTENTION  # linear attention cannot skip padding
    kind = dtype if config.quantize == "none" else config.quantize
    about = f"{kind}, {device}, {torch.get_num_threads()} thread(s)"
    return Generator(model, tokenizer, config, pads), about


# --------------------------------------------------------------------------------------------------
# Sampling


def sample(config):
    """Print the texts. ValueError for a checkpoint or a prompt that cannot be used."""
    prompts = {} if config.interactive else read_prompts(config)
    generator, kind = make_generator(config)
    if config.interactive:
        return converse(generator, kind)

    # The texts: num_samples for each prompt.
    has_messages = any(p.lstrip().startswith(("{", "[{")) for p in prompts.values())
    if config.prompts and generator.tokenizer.chat and has_messages:
        texts = answers_to(prompts, generator)
        config.json = True
    else:
        texts = continuations_of(prompts, generator)

    # Write them, and print each token as it comes.
    printer = Printer(texts, config.json)
    try:
        for _ in generator.write(texts):  # it adds tokens to the texts
            printer.show()
    except KeyboardInterrupt:
        printer.interrupt()
        print_speed(generator, kind)
        raise
    print_speed(generator, kind)


def continuations_of(prompts, generator):
    """Return num_samples Texts that continue each prompt."""
    config = generator.config
    tokenizer = generator.tokenizer
    texts = []
    for flag, prompt in prompts.items():
        most = generator.model.config.block_size
        ids = encode_prompt(tokenizer, prompt, most, flag)
        for seed in range(config.seed, config.seed + config.num_samples):
            texts.append(Text(tokenizer, config.stop, prompt, ids, seed))
    return texts


def answers_to(prompts, generator):
    """Return num_samples Texts that answer the messages in each prompt, a line of JSON."""
    config = generator.config
    template = ChatTemplate(generator.tokenizer)
    texts = []
    for flag, line in prompts.items():
        try:
            found = read_conversation(line)
            for seed in range(config.seed, config.seed + config.num_samples):
                texts.append(generator.answer(template, found.messages, seed, found.tools))
                texts[-1].prompt = found.messages
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None
    return texts


# --------------------------------------------------------------------------------------------------
# Talking


def typed_lines():
    """Yield what is typed, line by line, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # input() has a history then

        readline.parse_and_bind("set convert-meta off")  # or the locale C loses letters such as é
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            print()
            return


def converse(generator, kind):
    """Answer what is typed. Ctrl-C ends an answer, and Ctrl-D the conversation."""
    config = generator.config
    tokenizer = generator.tokenizer
    template = ChatTemplate(tokenizer) if tokenizer.chat else None
    if config.system and not template:
        raise ValueError("system: this model has no chat template; leave it out")
    generator.compile(config.max_new_tokens)
    first = [{"role": "system", "content": config.system}] if config.system else []
    messages = [*first]
    for line in typed_lines():
        if line.strip() == "/reset":
            messages = [*first]
            continue
        asked = [*messages, {"role": "user", "content": line if template else f"{line}\n"}]
        try:
            if template:
                answer = generator.answer(template, asked, config.seed)
            else:
                answer = continuation_of(asked, generator)
        except ValueError as error:
            print(error, file=sys.stderr)
            continue
        printer = Printer([answer])
        try:
            for _ in generator.extend([answer]):
                printer.show()
        except KeyboardInterrupt:
            printer.interrupt()
        # Without a template, a stop string was said too.
        said = template.plain(answer.text) if template else tokenizer.decode(answer.tokens)
        messages = [*asked, {"role": "assistant", "content": said}]
    print_speed(generator, kind)


def continuation_of(messages, generator):
    """Return a Text that continues all that was said, for a model without a chat template."""
    tokenizer = generator.tokenizer
    said = [message["content"] for message in messages]
    encode_prompt(tokenizer, said[-1], math.inf, "what you typed")  # an error names this line alone
    ids = encode_prompt(tokenizer, "".join(said), math.inf, "what you typed")
    return Text(tokenizer, generator.config.stop, ids=ids, seed=generator.config.seed)


def print_speed(generator, kind):
    print(f"{generator.meter.summary()}; {kind}", file=sys.stderr)


if __name__ == "__main__":
    with one_line_errors():
        sample(parse_settings(SampleConfig, sys.argv[1:]))
