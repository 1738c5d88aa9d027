"""Text from a trained model, printed as it is generated.

    python sample.py [--out_dir=out] [--start="Once upon" | --start=FILE:x.txt] [--key=value ...]
    python sample.py --init_from=gpt2                      published weights

Needs the checkpoint folder only, and no dataset. Text goes to the standard output, its speed to
the standard error.
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
from engine.chat import ChatTemplate
from engine.conversations import read_conversation
from engine.errors import UserError, at_least, one_line_errors
from engine.generate import Printer, Session, Text, compile_step, encode_prompt, stream
from engine.machine import pick_device
from engine.prepare import read_text
from engine.quantize import best_dtype, prepare_for_inference
from engine.sampling import Sampler, Sampling
from engine.settings import parse_settings
from model import GPT


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
    """End a text before one of these strings."""
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
            raise UserError("stop='' would end each text before it begins: leave it out")
        other_prompts = self.prompts or self.start != "\n" or self.num_samples != 1
        if self.interactive and (self.json or other_prompts):
            raise UserError(
                "interactive: you type the prompts; leave out start, prompts, num_samples and json"
            )
        if self.system and not self.interactive:
            raise UserError("system is for --interactive; in prompts, it is a message")
        if self.prompts and self.start != "\n":
            raise UserError(f"prompts={self.prompts} and start={self.start!r}: give one of them")


def sample(config):
    """Print the texts. UserError for a checkpoint or a prompt that cannot be used."""
    # Load
    folder = published.folder_in(config)
    model = GPT.from_pretrained(folder, base=config.base).to(pick_device(config.device))
    tokenizer = published.load_tokenizer(folder, model.config.vocab_size)
    template = ChatTemplate(tokenizer) if tokenizer.chat else None
    dtype = best_dtype(model) if config.dtype == "auto" else config.dtype
    model = prepare_for_inference(model, getattr(torch, dtype), config.quantize)
    if config.interactive:
        return converse(model, tokenizer, template, config)

    # Encode
    prompts = read_prompts(config)
    chats = config.prompts and template and any(p.lstrip()[:1] in "[{" for p in prompts.values())
    seeds = range(config.seed, config.seed + config.num_samples)
    texts = []
    for flag, prompt in prompts.items():
        if chats:
            texts += [answer_to(prompt, flag, model, template, config, seed) for seed in seeds]
        else:
            ids = encode_prompt(tokenizer, prompt, model.config.block_size, flag)
            texts += [Text(tokenizer, config.stop, prompt, ids, seed) for seed in seeds]

    # Write them, a batch at a time, and print each token as it comes
    started = time.perf_counter()
    config.json = config.json or bool(chats)
    printer = Printer(texts, config.json)
    batches = batches_of(texts, model, config)
    compiled = compile_step(model, config.compile, len(batches) * config.max_new_tokens)
    try:
        for batch in batches:
            for _ in write(batch, model, tokenizer, config, compiled):
                printer.show()
    except KeyboardInterrupt:
        printer.interrupt()
        raise
    finally:
        count = sum(len(text.tokens) for text in texts)
        speed = count / (time.perf_counter() - started)
        print(f"{count} tokens, {speed:.1f} tokens/s; {dtype}", file=sys.stderr)


def write(batch, model, tokenizer, config, compiled=None):
    """Add tokens to some texts until all have ended. Yields after each token, and at the end."""
    session = Session(model, [text.ids for text in batch], config.max_new_tokens, compiled=compiled)
    random = [torch.Generator().manual_seed(text.seed) for text in batch]
    sampler = Sampler(config, random, tokenizer.vocab_size)
    for ids, logits in stream(session, config.max_new_tokens, sampler):
        logprobs = [None] * len(batch)
        if config.json:
            known = logits[:, : tokenizer.vocab_size].float().log_softmax(-1)
            logprobs = known.gather(1, ids[:, None])[:, 0].tolist()
        for text, token, logprob in zip(batch, ids.tolist(), logprobs):
            text.add(token, logprob)
        if all(text.ended for text in batch):
            break
        yield
    for text in batch:
        text.end("length")
    yield


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


def answer_to(line, flag, model, template, config, seed):
    """Return the Text that answers the messages in a line of JSON."""
    try:
        found = read_conversation(line)
        text = answer(found.messages, model, template, config, seed, found.tools)
    except UserError as error:
        raise UserError(f"{flag}: {error}") from None
    text.prompt = found.messages
    return text


def answer(messages, model, template, config, seed, tools=None):
    """Return the Text that is to answer messages, by a ChatTemplate, which may render tools.

    The oldest turns are left out until there is room for max_new_tokens, or for half of the
    context. UserError if the last message is not a user's, or alone fills the context.
    """
    if messages[-1]["role"] != "user":
        raise UserError("the last message is not a user's")
    context = model.config.block_size
    room = min(config.max_new_tokens, context // 2)
    ids = template.encode_prompt(messages, context - room, tools)
    if len(ids) >= context:
        raise UserError(f"the message has {len(ids)} tokens; the model reads {context}")
    text = Text(template.tokenizer, config.stop, ids=torch.tensor(ids), seed=seed)
    text.end_token = template.end_of_turn()
    text.most = context - len(ids)
    return text


def batches_of(texts, model, config):
    """Return lists of at most batch_size texts to write together, the first text first.

    A full context moves on at a different time for each length, and then all texts of the batch are
    read again: texts that reach it are together with those of their length. So are all for linear
    attention, which cannot skip padding.
    """
    longest = max(len(text.ids) for text in texts) + config.max_new_tokens
    mixed = model.config.attention in ATTENTION and longest <= model.config.block_size
    groups = {}
    for text in texts:
        groups.setdefault(None if mixed else len(text.ids), []).append(text)
    size = config.batch_size
    return [group[n : n + size] for group in groups.values() for n in range(0, len(group), size)]


# ---- Talking


def converse(model, tokenizer, template, config):
    """Answer what is typed. Ctrl-C ends an answer, and Ctrl-D the conversation."""
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
                text = answer(asked, model, template, config, config.seed)
            else:  # all that was said is continued
                said = [message["content"] for message in asked]
                encode_prompt(tokenizer, said[-1], math.inf, "what you typed")  # names it alone
                ids = encode_prompt(tokenizer, "".join(said), math.inf, "what you typed")
                text = Text(tokenizer, config.stop, ids=ids, seed=config.seed)
        except UserError as error:
            print(error, file=sys.stderr)
            continue
        printer = Printer([text])
        try:
            for _ in write([text], model, tokenizer, config, compiled):
                printer.show()
        except KeyboardInterrupt:
            printer.interrupt()
        # Without a template, a stop string was said too.
        said = template.plain(text.text) if template else tokenizer.decode(text.tokens)
        messages = [*asked, {"role": "assistant", "content": said}]


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


if __name__ == "__main__":
    with one_line_errors():
        sample(parse_settings(SampleConfig, sys.argv[1:]))
