"""Generate text with a trained model, and print it as it comes.

    python sample.py [--out_dir=out] [--start="Once upon" | --start=FILE:x.txt] [--key=value ...]
    python sample.py --init_from=gpt2                      published weights

It needs only the checkpoint's folder, no dataset. The text goes to the standard output, and its
speed to the standard error.
"""

import contextlib
import math
import sys
import time
from dataclasses import dataclass
from typing import Literal

import torch

from attention import ATTENTION
from engine import published
from engine.errors import UserError, at_least, one_line_errors
from engine.generate import Printer, Session, Text, compile_step, encode_prompt, stream
from engine.machine import pick_device
from engine.prepare import read_text
from engine.quantize import decoding_dtype, prepare_for_inference
from engine.sampling import Sampling
from engine.settings import parse_settings
from model import GPT


@dataclass(kw_only=True)
class SampleConfig(Sampling):
    out_dir: str = "out"
    """The folder that train.py wrote, or one checkpoint in it."""
    checkpoint: str = "latest"
    """Which checkpoint: latest, best (lowest validation loss), or a name such as step_002000."""
    init_from: str = "resume"
    """resume: a checkpoint in out_dir. Or the model to load: another such folder, a folder in
    Hugging Face's layout, or the name of a published model, gpt2 or OWNER/NAME."""
    base: str = ""
    """Folder of a LoRA adapter's base model, if it has moved."""
    start: str = "\n"
    """The prompt; FILE:name reads it from a file, and - from the standard input."""
    prompts: str = ""
    """A file with one prompt per line, or - for the standard input. All of them are continued
    together."""
    interactive: bool = False
    """Talk to the model: you type, it answers and remembers the conversation. Ctrl-D ends it, and
    /reset begins a new conversation. A chat template is used if the model has one."""
    system: str = ""
    """The system message of an interactive conversation. The model needs a chat template."""
    num_samples: int = 1
    """Texts to generate from each prompt."""
    max_new_tokens: int = 500
    """Most tokens to generate for each text."""
    temperature: float = 0.8
    top_k: int = 200
    stop: tuple[str, ...] = ()
    """Strings that end a text. They are not printed."""
    seed: int = 1337
    """The same seed gives the same text, whatever else is in its batch. Sample n of several uses
    seed + n. Rounding can differ between processors and batch shapes."""
    json: bool = False
    """Print one line of JSON per text: prompt, text, tokens, their log-probabilities, and why it
    ended."""
    batch_size: int = 64
    """Texts to generate at a time."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto: the best available."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights. auto: bfloat16 on a GPU, or float16 if the GPU has no bfloat16; float16
    on an x86 CPU if the model doesn't fit into its cache (arithmetic stays in float32); otherwise
    float32."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile the decoding step, with CUDA graphs. auto: on a GPU, for 6,000 consecutive
    tokens or more, if the model's attention allows it."""
    quantize: Literal["none", "int8"] = "none"
    """int8: weights in a quarter of float32's bytes, at the cost of some precision; or none."""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, "num_samples", "max_new_tokens", "batch_size", most=10**7)
        at_least(0, self, "seed", most=2**32 - 1)  # what torch.Generator takes
        if "" in self.stop:
            raise UserError("stop='' would end each text before it begins: leave it out")
        other_prompts = self.prompts or self.start != "\n" or self.num_samples != 1
        if self.interactive and (self.json or other_prompts):
            raise UserError(
                "interactive: you type the prompts; leave out start, prompts, num_samples and json"
            )
        if self.system and not self.interactive:
            raise UserError("system is for --interactive")
        if self.prompts and self.start != "\n":
            raise UserError(f"prompts={self.prompts} and start={self.start!r}: give one of them")


def sample(config):
    """Generate texts and print them. UserError for a checkpoint or a prompt that cannot be used."""
    # Load
    prompts = {} if config.interactive else read_prompts(config)
    _, model, tokenizer = published.load(GPT, config)
    model.to(pick_device(config.device))
    dtype = decoding_dtype(model) if config.dtype == "auto" else config.dtype
    model = prepare_for_inference(model, getattr(torch, dtype), config.quantize)
    if config.interactive:
        return converse(model, tokenizer, config)

    # Encode
    texts = []
    for source, prompt in prompts.items():
        ids = encode_prompt(tokenizer, prompt, model.config.block_size, source)
        for n in range(config.num_samples):
            seed = config.seed + n
            texts.append(Text(tokenizer, ids, config.max_new_tokens, seed, config.stop, prompt))

    # Generate a batch at a time, and print each token as it comes
    started = time.perf_counter()
    printer = Printer(texts, config.json)
    batches = batches_of(texts, model, config)
    compiled = compile_step(model, config.compile, len(batches) * config.max_new_tokens)
    try:
        for batch in batches:
            write(batch, printer, model, config, compiled)
    finally:
        if printer.began:
            count = sum(len(text.tokens[1:]) for text in texts)
            speed = count / (time.perf_counter() - printer.began)
            waited = f"first token after {printer.began - started:.2f} s"
            form = dtype if config.quantize == "none" else config.quantize
            print(f"{waited}, then {speed:.1f} tokens/s; {form}", file=sys.stderr)


def write(texts, printer, model, config, compiled=None):
    """Add tokens to a batch of texts until all have ended. Ctrl-C ends them where they are."""
    vocab_size = texts[0].tokenizer.vocab_size
    session = Session(model, [text.ids for text in texts], config.max_new_tokens, compiled=compiled)
    random = [torch.Generator().manual_seed(text.seed) for text in texts]
    try:
        for ids, logits in stream(session, config, random, vocab_size):
            logprobs = [None] * len(texts)
            if config.json:
                known = logits[:, :vocab_size].float().log_softmax(-1)
                logprobs = known.gather(1, ids[:, None])[:, 0].tolist()
            for text, token, logprob in zip(texts, ids.tolist(), logprobs):
                text.add(token, logprob)
            printer.show()
            if all(text.ended for text in texts):
                break
    except KeyboardInterrupt:
        printer.interrupt()
        raise


# ---- Prompts


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
        raise UserError(f"prompts={config.prompts} has no line with a prompt")
    return prompts


def batches_of(texts, model, config):
    """Return lists of at most batch_size texts to generate together, the first text first.

    Each batch has texts of one length if a context may fill up: it moves on at a different time for
    each length, and then all texts of the batch are read again. Linear attention always needs one
    length, because it cannot skip padding.
    """
    longest = max(len(text.ids) for text in texts) + config.max_new_tokens
    mixed = model.config.attention in ATTENTION and longest <= model.config.block_size
    groups = {}
    for text in texts:
        groups.setdefault(None if mixed else len(text.ids), []).append(text)
    size = config.batch_size
    return [group[n : n + size] for group in groups.values() for n in range(0, len(group), size)]


# ---- Conversations


def converse(model, tokenizer, config):
    """Answer what the user types. Ctrl-C ends an answer, and Ctrl-D the conversation."""
    from engine.chat import ChatTemplate

    template = ChatTemplate(tokenizer) if tokenizer.chat else None
    if config.system and not template:
        raise UserError("system: this model has no chat template; leave it out")
    compiled = compile_step(model, config.compile, config.max_new_tokens)
    first = [{"role": "system", "content": config.system}] if config.system else []
    messages = [*first]
    for line in typed_lines():
        if line.strip() == "/reset":
            messages = [*first]
            continue
        asked = [*messages, {"role": "user", "content": line if template else f"{line}\n"}]
        try:
            if template:
                text = answer(asked, model, template, config)
            else:  # the model continues everything said so far
                said = [message["content"] for message in asked]
                ids = encode_prompt(tokenizer, "".join(said), math.inf, "what you typed")
                text = Text(tokenizer, ids, config.max_new_tokens, config.seed, config.stop)
        except UserError as error:
            print(error, file=sys.stderr)
            continue
        with contextlib.suppress(KeyboardInterrupt):
            write([text], Printer([text]), model, config, compiled)
        # Without a template, a stop string was said too.
        said = template.plain(text.text) if template else tokenizer.decode(text.tokens)
        messages = [*asked, {"role": "assistant", "content": said}]


def answer(messages, model, template, config):
    """Return the Text that will answer messages.

    The oldest turns are left out until there is room for max_new_tokens, or for half of the
    context. UserError if the last message alone fills the context.
    """
    context = model.config.block_size
    room = min(config.max_new_tokens, context // 2)
    ids = template.encode_prompt(messages, context - room)
    if len(ids) >= context:
        raise UserError(f"the message has {len(ids)} tokens; the model reads {context}")
    most = min(config.max_new_tokens, context - len(ids))
    end = template.end_of_turn()
    ids = torch.tensor(ids)
    return Text(template.tokenizer, ids, most, config.seed, config.stop, end_token=end)


def typed_lines():
    """Yield the lines that the user types, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # input() has a history then

        readline.parse_and_bind("set convert-meta off")  # or the locale C loses letters such as é
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            print()
            return


if __name__ == "__main__":
    with one_line_errors():
        sample(parse_settings(SampleConfig, sys.argv[1:]))
