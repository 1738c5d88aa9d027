"""What is said of experiments is what their JSON files hold: numbers, seeds, settings, verdicts."""

import ast
import dataclasses
import importlib
import re

from claims import claims_of, holds, rounded
from conftest import ROOT, parametrize

from engine.files import read_json
from experiments.shared import trials

RECORDS = {path.stem: read_json(path) for path in ROOT.glob("experiments/*.json")}
SHARED = "experiments/shared/*.py"  # has the sizes of data
NUMBER = r"(?<![\w.:/-])\d[\d,]*(?:\.\d+)?(?![\w/]|[.,]\d)"
PRESETS = {  # and where their runs are recorded
    "chat": "questions",
    "minute": "variants",
    "shakespeare_char": "shakespeare_char_seeds",
    "speedrun_cpu": "train_cpu",
    "words": "words_seeds",
}
# experiment, number of its table: what is larger > what is smaller, each by more than two standard
# errors; or what is alike: within two; or, if it is rounded, this number. A cell: row | column.
VERDICTS = """
blanks 0: sees both sides | right > fits both neighbours | right > looks back, next word | right
blanks 0: looks back, next word | right > looks back | right
blanks 0: 0.02 > looks back | right - follows the word before | right
choices 0: 1 head | validation loss > 4 heads | validation loss > window of 8 | validation loss
choices 0: 4 heads, one W_Q and W_K | validation loss > 4 heads | validation loss
choices 0: 4 heads, W_Q and W_K equal at first | validation loss is 4 heads | validation loss
choices 0: 4 heads, W_Q and W_K equal at first | heads differ is 4 heads | heads differ
choices 0: sparsemax | validation loss is 4 heads | validation loss
choices 0: chunks of 16 | validation loss is 4 heads | validation loss
choices 0: chunks of 16 | validation loss > window of 8 | validation loss
choices 0: 4 heads, K = V | validation loss - 4 heads | validation loss is 0.11
choices 0: 4 heads, V half as wide | validation loss is 4 heads | validation loss
choices 0: 4 heads, V twice as wide | validation loss > 4 heads | validation loss
choices 0: 4 > sparsemax | keys with a weight
convolution 0: convolutions | 50 > vision transformer | 50
convolution 0: convolutions, changed images | 50 > vision transformer, changed images | 50
convolution 0: convolutions | 1348 > vision transformer | 1348 > vision transformer | 50
convolution 0: convolutions | 50 - vision transformer | 50 > 0.1
convolution 0: 0.03 > convolutions | 1348 - vision transformer | 1348
distance 0: convolutions | 256 > attention | 256 > -3 > -40 > GRU | 256 > tanh RNN | 256
distance 2: GRU | 256 > 0.99 > convolutions | 128
distance 3: attention | 64 > 0.9 > 0.2 > GRU | 64
distance 3: convolutions | 64 > 0.9 > 0.2 > LSTM | 16
distance 3: attention | 128 > 0.9 > 0.2 > convolutions | 128
documents 0: hierarchical attention | test accuracy > attention to words | test accuracy
documents 0: hierarchical attention | test accuracy > average of sentences | test accuracy
documents 0: attention to words, GRUs | test accuracy
    > hierarchical attention, GRUs | test accuracy
documents 0: attention to words, GRUs | seconds / hierarchical attention, GRUs | seconds > 2
documents 0: hierarchical attention, GRUs | largest weight on the carrying sentence > 0.7
efficient 0: masked_fill | MB ~ n^ > 1.9 > 1.4 > linear | MB ~ n^
efficient 0: strided, as a mask | ms ~ n^ > strided, as two heads | ms ~ n^ > linear | ms ~ n^
efficient 0: strided, as a mask | ms, n = 8192 > tiled | ms, n = 8192
efficient 0: fused | ms, n = 8192 > clustered | ms, n = 8192 > hashed | ms, n = 8192
efficient 0: 1.5 > clustered | ms ~ n^
efficient 0: 1.3 > sliding window, 64 | ms ~ n^
efficient 0: 1.2 > hashed | ms ~ n^
efficient 0: fused | validation loss is hashed | validation loss
efficient 0: fused | validation loss is clustered | validation loss
efficient 0: fused | validation loss is linear | validation loss
heads 0: English | previous token > 0.3 > English | first token
heads 0: French | previous token > 0.3 > French | first token
heads 0: Python | previous token > 0.3 > Python | first token
heads 0: English | a separator > 0.1 > English | same token earlier
heads 0: French | a separator > 0.1 > French | same token earlier
heads 0: Python | a separator > Python | same token earlier > French | same token earlier
heads 0: 0.02 > English | induction, shuffled text
heads 0: 0.02 > French | induction, shuffled text
heads 0: 0.02 > Python | induction, shuffled text
images 0: support vector machine | test accuracy > vision transformer | test accuracy > 0.9
images 1: looks at the patches for each word | whole caption
    > has one vector, their mean | whole caption
images 1: has one vector, their mean | whole caption
    > a trained GPT looks through gates | whole caption > 0.2
images 1: a trained GPT looks through gates | loss before it looks
    is a trained GPT looks through gates | loss without images
induction 0: 1 | loss, again > 2 | loss, again
induction 0: 2 | runs with an induction head > 4 > 1 > 1 | runs with an induction head
parallel 0: GRU | 256 / attention | 256 is 12
parallel 0: 13 > GRU | 256 / attention | 256 > GRU | 1024 / attention | 1024 > 5
parallel 0: 5 > GRU | 4096 / attention | 4096 > 4
parallel 1: attention | 4096 / GRU | 4096 is 9.3
parallel 1: attention | 16 / GRU | 16 is 3.4
parallel 2: additive | 512 / dot | 512 is 65
parallel 3: additive | 512 / dot | 512 > 50
parallel 4: GRU | 64 / attention | 64 is 2.0
parallel 4: 2.1 > GRU | 16 / attention | 16 > GRU | 256 / attention | 256 > 1.3
parallel 4: attention | 1024 > GRU | 1024
parallel 4: attention | 4096 / GRU | 4096 is 2.4
parallel 5: GRU | 64 / attention | 64 is 3.2
parallel 5: GRU | 1024 / attention | 1024 is 1.6
parallel 5: attention | 4096 / GRU | 4096 is 1.3
parallel 6: attention | 41 > GRU | 41
parallel 6: attention | 131 > GRU | 131
parallel 6: attention | 459 > GRU | 131 > GRU | 459
parallel 7: attention | 459 > GRU | 131 > attention | 131
parallel 7: attention | 41 / GRU | 41 is 0.6
parallel 7: attention | 459 / GRU | 459 is 0.8
positions 1: none | up to T=64 > learned | up to T=64 > sinusoidal | up to T=64
positions 1: sinusoidal | up to T=64 > rope | up to T=64 > alibi | up to T=64
positions 1: sinusoidal | to 8T > rope | to 8T > none | to 8T > alibi | to 8T
positions 1: none | up to T=64 - alibi | up to T=64 is 0.17
positions 1: none | up to T=64 - rope | up to T=64 is 0.14
positions 1: none | up to T=64 - learned | up to T=64 is 0.015
positions 1: alibi | to 8T is alibi | to 2T
pronouns 0: none | right > 0.99
pronouns 1: additive | referent > additive | other
pronouns 1: dot | referent is dot | other
pronouns 2: transformer | referent, best head is transformer | other, best head
pronouns 3: transformer | referent, best head > transformer | other, best head
pronouns 5: additive | subject > 0.5 > 0.04 > additive | object
questions 0: question and image | all > question and one vector of the image | all > 0.7
questions 0: 0.55 > image alone | all > 0.45
reading 0: words | finds the referent > 0.9 > states | finds the referent
reading 0: states | finds the referent > back | finds the referent
reading 0: words | weight on the referent > words | on each other noun (referent)
reading 0: words | weight on the referent > states | weight on the referent
reading 0: states | right > back | right
reading 1: words | weight on the cue > words | on each other noun (cue)
reading 1: states | right > back | right
reading 2: words | weight on the subject > words | on each other noun (subject)
reading 2: words | finds the object > back | finds the object
recall 0: softmax | 256 > 0.99 > 0.1 > linear | 256
recall 0: 0.1 > sliding_window:32 | 256
recall 0: sliding_window:32 | 4 > 0.99 > linear | 4
retrieval 0: contrastive pair | digit of an image > 0.9 > 0.2 > a guess | digit of an image
routing 0: dense | validation loss > routed | validation loss
routing 0: routed by random keys | validation loss is routed | validation loss
routing 0: routed | validation loss is routed, not balanced | validation loss
routing 0: dense, as large as all experts | validation loss > routed | validation loss
routing 0: routed | MFLOP of a token / dense | MFLOP of a token is 1.01
routing 0: dense, as large as all experts | MFLOP of a token / dense | MFLOP of a token is 2.5
scaling 0: 128 | entropy, scaled_dot > 5 > 1 > 128 | entropy, dot
scaling 0: 64 | slope, dot > 64 | slope, scaled_dot
scaling 0: 1024 | slope, dot / 1024 | slope, scaled_dot is 0.4
scaling 1: [128, 'zero_out', 'dot'] | validation loss
    > [128, 'zero_out', 'scaled_dot'] | validation loss
scaling 1: [128, 'gpt2', 'dot'] | validation loss > [128, 'gpt2', 'scaled_dot'] | validation loss
scaling 1: 0.05 > [16, 'zero_out', 'dot'] | validation loss
    - [16, 'zero_out', 'scaled_dot'] | validation loss
scaling 1: [16, 'gpt2', 'scaled_dot'] | validation loss > [16, 'gpt2', 'dot'] | validation loss
scores 0: additive | turned and folded > general | turned and folded
scores 0: general | turned > 0.9 > 0.1 > additive | turned
scores 0: dot | the same > 0.9 > 0.1 > additive | the same
scores 0: mlp | turned and folded > 0.5
senses 0: trained | MLP 2 > 0.99 > 0.6 > trained | embedding
senses 0: as it begins | MLP 2 is 0.5
translate 0: none | 1-10 words > none | 11-20 words > none | 21-30 words > none | 31-40 words
translate 0: additive | 41-50 words > 90 > 75 > none | 1-10 words
translate 0: general | 41-50 words > 94
translate 0: loop | 41-50 words > 92
translate 0: bahdanau | seconds > transformer | seconds > additive | seconds
translate 0: transformer | 41-50 words > transformer2017 | 41-50 words > none | 41-50 words
vector 0: 0 | bits lacking - 1 | bits lacking is 4.3
vector 0: 0 | bits lacking - 4 | bits lacking is 9.9
vector 0: 0 | bits lacking - 16 | bits lacking is 15.5
vector 0: 16 | verb > 16 | subject > 16 | referent
vector 0: 64 | subject > 64 | referent > 16 | referent > 0 | referent
"""


def text_of(path):
    return (ROOT / path).read_text()


def numbers_in(text):
    """The numbers of a text but for those in code, links and the names of papers."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|arXiv:\S+|et al\. \d+|--\S+|sections? [\d.]+", " ", text)
    text = text.replace("10^-", "").replace("e-", " ")
    return {number.replace(",", "") for number in re.findall(NUMBER, text)}


def values_in(content):
    """The numbers of a JSON file, and of its texts, rounded in each way."""
    if isinstance(content, dict):
        content = [*content, *content.values()]
    if isinstance(content, list):
        return set().union(*map(values_in, content))
    found = re.findall(r"\d+\.?\d*(?:e-?\d+)?", str(content).replace(",", ""))
    return {*found}.union(*(rounded(float(number)) for number in found))


def sayings_of(name):
    """{where: what is said of an experiment's findings}, in its script and on two pages."""
    script = ast.get_docstring(ast.parse(text_of(f"experiments/{name}.py")))
    said = {"its script": script[script.index("\nFound") :]}
    for page in "experiments/README.md", "docs/lectures.md":
        for n, line in enumerate(text_of(page).splitlines(), 1):
            row = f"]({name}.py) |" in line and line.count(" | ") == 3  # of what was found
            if row or re.search(rf"\]\({name}.png\)|^\|.*`python -m experiments.{name}", line):
                said[f"{page}:{n}"] = line
    return said


@parametrize("name", RECORDS)
def test_verdicts(name):
    """Catches a verdict that the recorded runs do not bear, by two standard errors."""
    tables = [*RECORDS[name]["tables"].values()]
    claims = claims_of(name, VERDICTS)
    assert claims, "no verdict"
    for table, claim in claims:
        assert holds(tables[table], claim), claim


@parametrize("name", RECORDS)
def test_numbers(name):
    """Catches a number in a script's text, README.md or lectures.md that is in no record of it."""
    beside = [*ROOT.glob(f"benchmarks/{name}_*.json")]
    known = values_in([RECORDS[name], *map(read_json, beside)])
    code = [text_of(path) for path in (f"experiments/{name}.py", *ROOT.glob(SHARED))]
    code = [ast.unparse(ast.parse(text).body[1:]) for text in code]
    known |= values_in([*code, *(claim for _, claim in claims_of(name, VERDICTS))])
    for where, text in sayings_of(name).items():
        strange = numbers_in(text) - known
        assert not strange, (where, strange)


@parametrize("name", RECORDS)
def test_seeds_and_settings(name):
    """Catches other seeds than are said, and a record of settings that the script has no more."""
    settings = RECORDS[name]["settings"]
    module = importlib.import_module(f"experiments.{name}")
    config = getattr(module, "Settings", trials.Settings)
    assert settings.keys() <= {field.name for field in dataclasses.fields(config)}
    said = " ".join(sayings_of(name).values())
    assert f"| {settings['seeds']} |" in said


@parametrize("preset, record", PRESETS.items())
def test_presets(preset, record):
    """Catches a loss or a share in a preset's header that no recorded run of it has."""
    runs = read_json(ROOT / f"benchmarks/{record}.json")["runs"]
    known = values_in(runs)
    losses = [run["val_loss"] for run in runs if "val_loss" in run]
    known |= rounded(sum(losses) / max(1, len(losses)))
    for name, count in (item for run in runs for item in run.items()):
        asked = name.rpartition("_")[2]  # right answers of so many
        if asked.isdigit():
            known |= rounded(100 * count / int(asked))
    [reached] = re.findall(r"^# Reaches: (.*)", text_of(f"config/{preset}.toml"), re.M)
    assert not {number for number in numbers_in(reached) if "." in number or "%" in reached} - known
