"""The page of tools.visualize in headless Chromium, by selenium. Skipped without them."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import open_page, tiny, wait_for

from attention import attention_weights, causal, everything, sliding_window
from engine.weights import checkpoint
from experiments.shared import translation, translators
from tools.census import FOLLOWS_A_COPY, keys_that_count
from tools.shared.inspection import attention_maps, entropy
from tools.visualize import VisualizeConfig, distance, main

webdriver = pytest.importorskip("selenium.webdriver")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = pytest.mark.browser
TEXT = 'it was </script><b>bold</b> & "so"\nשלום 😀 it was'
BYTE = 1 / 255 + 1e-5  # the page's weights are bytes


def random_model(**changes):
    shape = dict(block_size=64, vocab_size=256, n_head=3, n_embd=24, position="rope")
    return tiny(**shape | dict(window=9, window_pattern="SL") | changes)


class Opened:
    """The page of a small model in a browser, and the weights and logits that it is to show."""

    def __init__(self, browser, folder):
        model = random_model()
        checkpoint.save_checkpoint(folder / "out", 1, model, {}, {"kind": "byte"}, {}, {})
        self.path, _ = main(VisualizeConfig(out_dir=str(folder / "out"), text=TEXT))
        self.browser = browser
        self.run = browser.execute_script
        self.ids = torch.tensor(list(TEXT.encode()))
        maps, self.logits = attention_maps(model, self.ids, attention_weights)
        self.maps = torch.stack(maps)

    def open(self):
        open_page(self.browser, self.path)

    def emulate(self, name, value):
        """Set a feature of the reader's system."""
        features = {"features": [{"name": name, "value": value}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def each(self, selector, value):
        """The value, a JavaScript expression of e, of each element."""
        script = f"return [...document.querySelectorAll(arguments[0])].map(e => {value})"
        return self.run(script, selector)

    def choose(self, **values):
        """Set form elements by their id."""
        script = """
            const e = document.getElementById(arguments[0]);
            e.value = arguments[1];
            for (const type of ['input', 'change']) e.dispatchEvent(new Event(type))"""
        for name, value in values.items():
            self.run(script, name, str(value))

    def is_selected(self, token):
        return self.find(f"#token-{token}").get_attribute("aria-selected") == "true"

    def weights(self):
        """The weights that the tokens show."""
        shares = self.each("#tokens [data-n]", "+e.style.getPropertyValue('--share')")
        return torch.tensor(shares) ** 2

    def shows(self, weights):
        return (self.weights() - weights).abs().max() <= BYTE


@pytest.fixture(scope="module")
def opened_once(chromium, tmp_path_factory):
    return Opened(chromium, tmp_path_factory.mktemp("run"))


@pytest.fixture
def opened(opened_once):
    """The page as it is when it opens."""
    opened_once.open()
    yield opened_once
    for setting in "setEmulatedMedia", "clearDeviceMetricsOverride":
        opened_once.browser.execute_cdp_cmd(f"Emulation.{setting}", {"features": []})


def test_it_opens_without_an_error_and_without_a_request(opened):
    """Catches a script that fails, and a font or a library from elsewhere."""
    browser = opened.browser
    browser.get_log("browser")
    browser.get_log("performance")
    opened.open()
    for tab in "playground", "paths", "attention":
        opened.find(f"#tab-{tab}").click()
        assert opened.find(f"#{tab}").is_displayed()
    assert browser.get_log("browser") == []
    requests = set()
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            requests.add(event["params"]["request"]["url"])
    assert requests - {"data:,"} == {opened.path.as_uri()}
    assert opened.path.stat().st_size < 200_000


@pytest.mark.parametrize("token, layer, head", [(20, 0, 2), (47, 1, 0)])
def test_a_click_shows_where_the_token_looks(opened, token, layer, head):
    """Catches another head, a row for a column, and a weight of 0 that is none or was one."""
    opened.choose(layer=layer, head=head)
    opened.find(f"#token-{token}").click()
    weights = opened.maps[layer, head, token]
    assert opened.shows(weights) and opened.is_selected(token)
    assert ((opened.weights() == 0) == (weights == 0)).all()
    best = int(weights.argmax())
    start, reading, _ = opened.find("#sentence").text.replace(")", "(").split("(", 2)
    assert start.startswith(f"In layer {layer + 1}, head {head + 1}, ")
    assert ("itself" if best == token else f"{token - best} back") in start
    assert abs(float(reading) - weights.max()) < 0.01


def test_rollout(opened):
    """Catches a rollout through the wrong layers."""
    mixed = (opened.maps.mean(1) + torch.eye(len(opened.ids))) / 2
    opened.find("#token-30").click()
    for layer, weights in enumerate([mixed[0], mixed[1] @ mixed[0]]):
        opened.choose(layer=layer, head=opened.maps.shape[1])  # the option after the heads
        assert opened.shows(weights[30])


def test_what_comes_next(opened):
    """Catches candidates or a loss of the token before or after, and a mark at the wrong one."""
    opened.run("data.came[2] = 3")
    opened.find("#token-2").click()
    best, _ = opened.logits[2].softmax(-1).topk(10)
    shown = torch.tensor(opened.each("#next li", "+e.dataset.p"))
    assert torch.allclose(shown, best, atol=1e-4)
    assert opened.each("#next li", "e.className === 'came'").index(True) == 3
    losses = F.cross_entropy(opened.logits[:-1], opened.ids[1:], reduction="none")
    shades = opened.each("#tokens [data-n]", "+e.style.getPropertyValue('--loss-share')")
    assert torch.allclose(torch.tensor(shades[1:]), losses / losses.max(), atol=1e-3)


def test_text_stays_text(opened):
    """Catches HTML from the text that becomes part of the page, and half a character."""
    labels = opened.each("#tokens [data-n]", "e.textContent")
    assert "".join(labels).startswith('it·was·</script><b>bold</b>·&·"so"⏎ש¹⁄₂ש²⁄₂')
    assert not opened.each("#tokens b, #sentence script", "e.id")


@pytest.mark.parametrize("first", ["", "<s> ", "12 "])
def test_text_from_right_to_left(opened, first):
    """Catches tokens laid out from the wrong side, or a text by the mark that begins it."""
    text = [first, *"שלום ", "a1", *" ם."]
    opened.run("view.open({...view.reading, labels: arguments[0], breaks: []})", text)
    lefts = opened.each("#tokens [data-n]", "e.getBoundingClientRect().left")[1:]
    assert lefts == sorted(lefts, reverse=True)
    opened.run("view.open({...view.reading, labels: ['a', 'ש', 'ל', 'b', 'c'], breaks: []})")
    places = opened.each("#tokens [data-n]", "e.getBoundingClientRect().left")
    assert sorted(range(5), key=places.__getitem__) == [0, 2, 1, 3, 4]


def test_the_keyboard_is_enough(opened):
    """Catches a token, a head, a layer or a tab that only a mouse can reach."""
    opened.choose(layer=0, head=0)
    opened.find("#token-5").click()
    for key, (token, layer, head) in {
        Keys.ARROW_RIGHT: (6, 0, 0),
        Keys.ARROW_LEFT: (5, 0, 0),
        Keys.ARROW_DOWN: (5, 0, 1),
        Keys.ARROW_UP: (5, 0, 0),
        "]": (5, 1, 0),
        "[": (5, 0, 0),
        Keys.END: (len(opened.ids) - 1, 0, 0),
    }.items():
        opened.browser.switch_to.active_element.send_keys(key)
        assert opened.is_selected(token) and opened.shows(opened.maps[layer, head, token])
    opened.find("#tab-attention").send_keys(Keys.ARROW_RIGHT)
    assert opened.find("#playground").is_displayed()


def pixels(opened, canvas):
    """The darkness of each pixel (rows, columns) of a canvas, beside the paper."""
    read = """
        const canvas = arguments[0], [w, h] = [canvas.width, canvas.height];
        const bytes = canvas.getContext('2d').getImageData(0, 0, w, h).data;
        const paper = colour('--paper');
        return [...Array(w * h).keys()]
            .map(n => bytes[4 * n + 3] / 255 * Math.abs(paper[0] - bytes[4 * n]))"""
    height = int(canvas.get_attribute("height"))
    return torch.tensor(opened.run(read, canvas)).view(height, -1)


def test_the_map_and_the_thumbnails_are_of_their_heads(opened):
    """Catches a picture or a figure of another head, upside down, or of the columns."""
    # They are drawn while nothing else happens; the last has its figures when all are there.
    wait_for(opened.browser, "return !!$$('#heads small').at(-1).textContent")
    name = "[aria-label^='layer 2, head 1']"
    opened.run("document.querySelector(arguments[0]).click()", name)
    assert "In layer 2, head 1" in opened.find("#sentence").text
    weights = opened.maps[1, 0]
    for canvas in opened.find("#map canvas"), opened.find(f"{name} canvas"):
        found = pixels(opened, canvas)
        assert found.shape == weights.shape
        both = torch.stack([found.flatten(), weights.sqrt().flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.99
    bits, back, copied = opened.each(f"{name} small", "parseFloat(e.textContent)")
    assert abs(bits - entropy(weights).mean()) < 0.06
    assert abs(back - distance(weights).mean()) < 0.06
    keys = keys_that_count(opened.ids)[FOLLOWS_A_COPY]
    keys[1:] &= keys[:-1].roll(1, 1)  # and the token before it, too
    assert abs(copied - (weights * keys).sum(-1)[keys.any(-1)].mean()) < 0.01


def test_reading_the_map(opened):
    """Catches a weight of another pair, and one of the future."""
    opened.choose(layer=1, head=0)
    script = """
        const [i, j, T] = arguments, canvas = document.querySelector('#map canvas');
        const place = canvas.getBoundingClientRect();
        const at = {clientX: place.left + place.width * (j + .5) / T,
                    clientY: place.top + place.height * (i + .5) / T};
        for (const type of ['pointermove', 'click'])
          canvas.dispatchEvent(new PointerEvent(type, at));
        return document.querySelector('#map-reading').textContent"""
    said = opened.run(script, 30, 28, len(opened.ids))
    assert opened.is_selected(30)
    assert "(token 31)" in said and said.endswith(f"(token 29): {opened.maps[1, 0, 30, 28]:.2f}")
    assert opened.run(script, 5, 9, len(opened.ids)).endswith("(token 10): the future")


def points(opened, selector):
    """The points (N, 2) of the playground."""
    return torch.tensor(opened.each(selector, "[+e.dataset.x, +e.dataset.y]")).double()


@pytest.mark.parametrize(
    "mask, visible, root, temperature, size",
    [
        ("causal", causal, True, 1, 2),
        ("window", sliding_window(2), True, 2.5, 64),
        ("everything", everything, False, 0.5, 8),
    ],
)
def test_the_playground_computes_attention(opened, mask, visible, root, temperature, size):
    """Catches weights that are not attention.py's, and numbers that are typed in vain."""
    opened.find("#tab-playground").click()
    opened.choose(mask=mask, temperature=temperature, size=size)
    if not root:
        opened.find("#root").click()
    opened.choose(**{"type-k2-x": "-0.5", "type-k2-y": "1.25", "type-v3-x": "nonsense"})
    query, keys, values, output = (
        points(opened, selector)
        for selector in ("#drag-q", "#keys [id^=drag-k]", "#values [id^=drag-v]", "#output")
    )
    weights = torch.tensor(opened.each("#numbers tbody tr", "+e.dataset.weight"))
    assert keys[1].tolist() == [-0.5, 1.25] and values[2, 0] == -0.5
    scaled = query / temperature * (1 if root else math.sqrt(size))
    q = scaled.repeat(1, 1, 5, size // 2)
    k = keys.repeat(1, 1, 1, size // 2)
    expected = attention_weights(q, k, visible)[0, 0, 3]
    assert (weights - expected).abs().max() < 1e-5
    assert (output - expected @ values).abs().max() < 1e-5


def test_the_counts_of_the_paths(opened):
    """Catches other scores than the path makes, or holds."""
    opened.find("#tab-paths").click()
    opened.choose(scrub=opened.find("#scrub").get_attribute("max"))
    counts = {  # scores made, and held at a time with tiled's maximum and sum for each row
        "naive": (78, 12, 0),
        "masked_fill": (144, 144, 0),
        "tiled": (6 * 16, 16, 2 * 12),
        "cached decode": (78, 12, 0),
        "window": (33, 3, 0),
    }
    for name, (made, held, sums) in counts.items():
        figures = "[+e.dataset.made, +e.dataset.held, +e.dataset.bytes]"
        [found] = opened.each(f"[data-path='{name}']", figures)
        assert found == [made, held, 4 * (held + sums + 2 * 12 * 8)], name  # with keys and values


@pytest.mark.parametrize("scheme, width", [("light", 390), ("dark", 1200)])
def test_it_fits(opened, scheme, width):
    """Catches a page that scrolls sideways on a phone, and colours that cannot be read."""
    screen = dict(width=width, height=800, deviceScaleFactor=1, mobile=False)
    opened.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    opened.emulate("prefers-color-scheme", scheme)
    for tab in "attention", "playground", "paths":
        opened.find(f"#tab-{tab}").click()
        assert opened.run("return document.documentElement.scrollWidth <= innerWidth")
    ink, soft, paper = opened.run("return ['ink', 'soft', 'paper'].map(n => colour('--' + n)[0])")
    assert abs(paper - ink) > 150 and abs(paper - soft) > 100
    assert (paper < ink) == (scheme == "dark")


def test_an_alignment(chromium, tmp_path):
    """Catches a word that lights nothing, or by the weights of another; a page only for a mouse."""
    vocabulary = translation.learn_vocabulary(["the cat", "le chat"], 300)
    shape = translators.Shape(n_embd=32)
    model = translators.MODELS["bahdanau"](len(vocabulary), shape)
    torch.nn.init.normal_(model.score.v)
    weights = dict(model.named_parameters())
    translators.save(tmp_path / "out", "bahdanau", shape, vocabulary, weights)
    [path] = main(VisualizeConfig(out_dir=str(tmp_path / "out"), text="the cat"))
    chromium.get_log("browser")
    chromium.get(path.as_uri())
    weights = torch.tensor(chromium.execute_script("return data.alignments[0].weights"))

    def lit(side):
        each = f"[...document.querySelectorAll('#{side} button')]"
        script = f"return {each}.map(e => Number(e.style.getPropertyValue('--share')) ** 2)"
        return torch.tensor(chromium.execute_script(script), dtype=torch.float)

    assert torch.allclose(lit("source"), weights[0], atol=1e-3)
    chromium.switch_to.active_element.send_keys(Keys.TAB)
    assert torch.allclose(lit("target"), weights[:, 0], atol=1e-3) and not lit("source").any()
    last = chromium.find_elements("css selector", "#target button")[-1]
    webdriver.ActionChains(chromium).move_to_element(last).perform()
    assert torch.allclose(lit("source"), weights[-1], atol=1e-3) and not lit("target").any()
    assert not chromium.get_log("browser")
