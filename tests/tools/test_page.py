"""The page of tools.visualize in headless Chromium, by selenium. Skipped without them."""

import json
import math
import shutil
import statistics
import time

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny

from attention import attention_weights, causal, everything, sliding_window, softmax, sparsemax
from engine.plotting.inspection import attention_maps, entropy
from engine.text import tokenizer
from engine.weights import checkpoint
from masks import mask_of, positions
from tools.visualize import VisualizeConfig, describe, distance, main, page

pytestmark = pytest.mark.browser
TEXT = 'it was </script><b>bold</b> & "so"\nשלום 😀 it was'
BYTE = 1 / 255 + 1e-5  # the page's weights are bytes
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1200,900"
)
TOKENS = "[...document.querySelectorAll('#tokens [data-n]')]"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A browser with an empty profile, which records its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("needs chromium and chromium-driver (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


def random_model(**changes):
    shape = dict(block_size=64, vocab_size=256, n_head=3, n_embd=24, position="rope")
    return tiny(**shape | dict(window=9, window_pattern="SL") | changes)


class Opened:
    """The page of a small model in a browser, and the weights and logits that it is to show."""

    def __init__(self, browser, folder):
        model = random_model()
        checkpoint.save_checkpoint(folder / "out", 1, model, {}, {"kind": "byte"}, {}, {})
        path, _ = main(VisualizeConfig(out_dir=str(folder / "out"), text=TEXT))
        self.browser = browser
        self.url = path.as_uri()
        self.size = len(path.read_bytes())
        self.ids = torch.tensor(list(TEXT.encode()))
        maps, self.logits = attention_maps(model, self.ids, attention_weights)
        self.maps = torch.stack(maps)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def find_all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def read(self, expression, *arguments):
        return self.run(f"return {expression}", *arguments)

    def choose(self, **values):
        """Set form elements by their id."""
        for name, value in values.items():
            self.run(
                "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                "for (const type of ['input', 'change']) e.dispatchEvent(new Event(type))",
                name,
                str(value),
            )

    def click(self, selector):
        self.run("document.querySelector(arguments[0]).click()", selector)

    def is_selected(self, token):
        return self.find(f"#token-{token}").get_attribute("aria-selected") == "true"

    def weights(self):
        """The weights that the tokens show."""
        return torch.tensor(self.read(f"{TOKENS}.map(e => +e.dataset.weight)"))

    def shows(self, weights):
        return (self.weights() - weights).abs().max() <= BYTE

    def sentence(self):
        return self.find("#sentence").text


@pytest.fixture(scope="module")
def opened_once(chromium, tmp_path_factory):
    return Opened(chromium, tmp_path_factory.mktemp("run"))


@pytest.fixture
def opened(opened_once):
    """The page as it is when it opens."""
    opened_once.browser.get(opened_once.url)
    return opened_once


def wait_for_thumbnails(browser):
    """They are drawn while nothing else happens."""
    end = time.monotonic() + 20
    heads = browser.find_element("css selector", "#heads")
    while heads.get_attribute("data-drawn") != "all":
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_opens_without_an_error_and_without_a_request(opened):
    """Catches a script that fails, and a font or a library from elsewhere."""
    browser = opened.browser
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(opened.url)
    for tab in "playground", "paths", "attention":
        opened.find(f"#tab-{tab}").click()
        assert opened.find(f"#{tab}").is_displayed()
    assert browser.get_log("browser") == []
    requests = set()
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            requests.add(event["params"]["request"]["url"])
    assert requests - {"data:,"} == {opened.url}
    assert opened.size < 200_000


@pytest.mark.parametrize("token, layer, head", [(20, 0, 2), (47, 1, 0), (0, 1, 1)])
def test_a_click_shows_where_the_token_looks(opened, token, layer, head):
    """Catches another head, another row, and a weight of 0 that is none or was one."""
    opened.choose(layer=layer, head=head)
    opened.find(f"#token-{token}").click()
    weights = opened.maps[layer, head, token]
    assert opened.shows(weights) and opened.is_selected(token)
    assert ((opened.weights() == 0) == (weights == 0)).all()
    best = int(weights.argmax())
    start, reading, _ = opened.sentence().replace(")", "(").split("(", 2)
    assert start.startswith(f"In layer {layer + 1}, head {head + 1}, ")
    assert ("itself" if best == token else f"{token - best} back") in start
    assert abs(float(reading) - weights.max()) < 0.01


def test_who_looks_at_a_token(opened):
    """Catches a row in place of a column."""
    opened.choose(layer=1, head=2)
    opened.find("#token-9").click()
    opened.click("[value=ahead]")
    assert opened.shows(opened.maps[1, 2, :, 9])
    assert "is looked at most by" in opened.sentence()


def test_averages_and_rollout(opened):
    """Catches an average over the wrong heads, and a rollout through the wrong layers."""
    mixed = (opened.maps.mean(1) + torch.eye(len(opened.ids))) / 2
    expected = {
        (0, -1): opened.maps[0].mean(0),
        (-1, 2): opened.maps[:, 2].mean(0),
        (-1, -1): opened.maps.mean((0, 1)),
        (0, -2): mixed[0],
        (1, -2): mixed[1] @ mixed[0],
    }
    opened.find("#token-30").click()
    for (layer, head), weights in expected.items():
        opened.choose(layer=layer, head=head)
        assert opened.shows(weights[30]), (layer, head)


def test_what_comes_next(opened):
    """Catches the candidates of the token before or after, and a mark at the wrong one."""
    opened.find("#token-2").click()
    best, _ = opened.logits[2].softmax(-1).topk(10)
    shown = torch.tensor(
        opened.read("[...document.querySelectorAll('#next li')].map(e => +e.dataset.p)")
    )
    assert torch.allclose(shown, best, atol=1e-4)
    assert f"({best[0]:.2f})." in opened.sentence()
    candidates = opened.logits.topk(10).indices
    for n in range(len(opened.ids) - 1):
        opened.click(f"#token-{n}")
        marks = opened.read(
            "[...document.querySelectorAll('#next li')].map(e => e.className === 'came')"
        )
        assert marks == (candidates[n] == opened.ids[n + 1]).tolist()
    opened.run("data.came[7] = 3")
    opened.click("#token-7")
    assert opened.find("#next .came") == opened.find_all("#next li")[3]


def test_text_stays_text(opened):
    """Catches HTML from the text that becomes part of the page, and half a character."""
    labels = opened.read(f"{TOKENS}.map(e => e.textContent)")
    assert "".join(labels).startswith('it·was·</script><b>bold</b>·&·"so"⏎ש¹⁄₂ש²⁄₂')
    assert "😀³⁄₄" in labels
    assert not opened.find_all("#tokens b, #sentence script")
    assert opened.read(f"getComputedStyle({TOKENS}[0]).unicodeBidi") == "isolate"


def test_the_keyboard_is_enough(opened):
    """Catches a token, a head, a layer or a tab that only a mouse can reach."""
    from selenium.webdriver.common.keys import Keys

    opened.choose(layer=0, head=0)
    opened.find("#token-5").click()
    for key, (token, layer, head) in {
        Keys.ARROW_RIGHT: (6, 0, 0),
        Keys.ARROW_LEFT: (5, 0, 0),
        Keys.ARROW_DOWN: (5, 0, 1),
        Keys.ARROW_UP: (5, 0, 0),
        "]": (5, 1, 0),
        "[": (5, 0, 0),
        Keys.HOME: (0, 0, 0),
        Keys.END: (len(opened.ids) - 1, 0, 0),
    }.items():
        opened.browser.switch_to.active_element.send_keys(key)
        active = opened.browser.switch_to.active_element
        assert active.get_attribute("id") == f"token-{token}" and opened.is_selected(token)
        assert opened.shows(opened.maps[layer, head, token])
    assert opened.read("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.find("#tab-attention").send_keys(Keys.ARROW_RIGHT)
    assert opened.find("#playground").is_displayed()
    assert not opened.find("#attention").is_displayed()


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


@pytest.mark.parametrize("layer, head", [(0, 2), (1, 0)])
def test_the_map_and_the_thumbnails_are_of_their_heads(opened, layer, head):
    """Catches a picture of another head, upside down, or of the columns."""
    wait_for_thumbnails(opened.browser)
    name = f"[aria-label^='layer {layer + 1}, head {head + 1}']"
    opened.click(name)
    assert opened.find(name).get_attribute("aria-pressed") == "true"
    assert f"In layer {layer + 1}, head {head + 1}" in opened.sentence()
    weights = opened.maps[layer, head]
    for canvas in opened.find("#map canvas"), opened.find(f"{name} canvas"):
        found = pixels(opened, canvas)
        assert found.shape == weights.shape
        both = torch.stack([found.flatten(), weights.sqrt().flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.99
    bits, back = (e.get_attribute("textContent") for e in opened.find_all(f"{name} small"))
    assert abs(float(bits.removesuffix(" bits")) - entropy(weights).mean()) < 0.06
    assert abs(float(back.removesuffix(" back")) - distance(weights).mean()) < 0.06


@pytest.mark.parametrize("i, j", [(30, 12), (47, 0), (5, 9)])
def test_reading_the_map(opened, i, j):
    """Catches a weight of another pair, and a line that marks another row."""
    opened.choose(layer=1, head=0)
    T = len(opened.ids)
    script = """
        const [i, j, T] = arguments, canvas = document.querySelector('#map canvas');
        const place = canvas.getBoundingClientRect();
        const at = {clientX: place.left + place.width * (j + .5) / T,
                    clientY: place.top + place.height * (i + .5) / T};
        for (const type of ['pointermove', 'click'])
          canvas.dispatchEvent(new PointerEvent(type, at));"""
    opened.run(script, i, j, T)
    said = opened.find("#map-reading").get_attribute("textContent")
    assert f"(token {i + 1})" in said and f"(token {j + 1}): " in said
    reading = said.rpartition(": ")[2]
    if j > i:
        assert reading == "the future"
    else:
        value = 0 if reading == "<0.01" else float(reading)
        assert abs(value - opened.maps[1, 0, i, j]) < 0.01
    assert opened.is_selected(i)
    at = opened.read("document.querySelector('#map-row').style.getPropertyValue('--at')")
    assert math.isclose(float(at.rstrip("%")), 100 * i / T, abs_tol=0.01)


def test_the_loss_is_the_shade_of_its_token(opened):
    """Catches the loss of a neighbour."""
    shades = opened.read(f"{TOKENS}.map(e => +e.style.getPropertyValue('--loss-share'))")
    losses = F.cross_entropy(opened.logits[:-1], opened.ids[1:], reduction="none")
    assert torch.allclose(torch.tensor(shades[1:]), losses / losses.max(), atol=1e-3)


def test_hovering(opened):
    """Catches a page that follows the pointer although a token is held, or does not."""
    from selenium.webdriver import ActionChains

    opened.choose(layer=1, head=1)
    for token, click, shown in (12, False, 12), (40, False, 40), (40, True, 40), (7, False, 40):
        there = ActionChains(opened.browser).move_to_element(opened.find(f"#token-{token}"))
        (there.click() if click else there).perform()
        assert opened.shows(opened.maps[1, 1, shown])


def playground(opened):
    """(query, keys, values, weights, output) as the page shows them."""
    found = []
    for selector in "#drag-q", "#keys [id^=drag-k]", "#values [id^=drag-v]", "#output":
        script = (
            "[...document.querySelectorAll(arguments[0])].map(e => [+e.dataset.x, +e.dataset.y])"
        )
        found.append(torch.tensor(opened.read(script, selector)).double())
    query, keys, values, output = found
    rows = "[...document.querySelectorAll('#numbers tbody tr')].map(e => +e.dataset.weight)"
    return query, keys, values, torch.tensor(opened.read(rows)).double(), output[0]


def test_dragging_the_query(opened):
    """Catches a handle that does not follow the pointer or the arrow keys."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened.find("#tab-playground").click()
    handle = opened.find("#drag-q")
    before = playground(opened)[0]
    drag = ActionChains(opened.browser).move_to_element(handle).click_and_hold()
    drag.move_by_offset(-60, 45).release().perform()
    after = playground(opened)[0]
    pixels = opened.find("#keys").size["width"] / 5
    moved = torch.tensor([[-60, -45]]).double() / pixels
    assert torch.allclose(after - before, moved, atol=0.05)
    handle.send_keys(Keys.ARROW_UP)
    assert math.isclose(playground(opened)[0][0, 1], after[0, 1] + 0.1, abs_tol=1e-6)


def test_the_playground_computes_attention(opened):
    """Catches weights that are not attention.py's, for each mask, normalizer and temperature."""
    opened.find("#tab-playground").click()
    masks = {"causal": causal, "window": sliding_window(2), "everything": everything}
    for mask, visible in masks.items():
        for name, normalize in ("softmax", softmax), ("sparsemax", sparsemax):
            for root, temperature in (True, 1), (False, 0.5), (True, 2.5):
                opened.choose(mask=mask, normalize=name, temperature=temperature)
                if opened.find("#root").is_selected() != root:
                    opened.find("#root").click()
                query, keys, values, weights, output = playground(opened)
                scaled = query / temperature * (1 if root else math.sqrt(2))
                q = scaled.expand(5, 2)[None, None]
                expected = attention_weights(q, keys[None, None], visible, normalize=normalize)
                expected = expected[0, 0, 3]
                assert (weights - expected).abs().max() < 1e-5, (mask, name, root, temperature)
                assert (output - expected @ values).abs().max() < 1e-5
    assert "max(score" in opened.find("#formula").text


def test_the_counts_of_the_paths(opened):
    """Catches an animation that makes other scores than the path, or never ends."""
    opened.find("#tab-paths").click()
    opened.find("#play").click()
    last = int(opened.find("#scrub").get_attribute("max"))
    opened.choose(scrub=last)
    i, j = positions(12, 12)
    mask = mask_of(causal, i, j)[0]
    tiles = mask.unfold(0, 4, 4).unfold(1, 4, 4).flatten(2).any(-1)
    pairs = int(mask.sum())
    window = int(mask_of(sliding_window(3), i, j).sum())
    counts = {  # scores made, and held at a time with tiled's maximum and sum for each row
        "naive": (pairs, 12, 0),
        "masked_fill": (144, 144, 0),
        "tiled": (16 * int(tiles.sum()), 16, 2 * 12),
        "cached decode": (pairs, 12, 0),
        "window": (window, 3, 0),
    }
    for name, (made, held, sums) in counts.items():
        panel = opened.find(f"[data-path='{name}']")
        found = [int(panel.get_attribute(f"data-{count}")) for count in ("made", "held", "bytes")]
        assert found == [made, held, 4 * (held + sums + 2 * 12 * 8)], name  # with keys and values
    opened.find("#step-back").click()
    assert opened.find("#step-value").text == f"step {last - 1} of {last}"
    opened.find("#play").click()
    assert opened.find("#play").text == "Pause"


@pytest.fixture
def emulate(opened):
    """A function that sets a feature of the reader's system, until the end of the test."""

    def set_feature(name, value):
        features = {"features": [{"name": name, "value": value}]}
        opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    yield set_feature
    opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    opened.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_motion(opened, emulate):
    """Catches an animation that begins although the reader's system says none."""
    emulate("prefers-reduced-motion", "reduce")
    opened.browser.get(opened.url)
    opened.find("#tab-paths").click()
    assert opened.find("#play").text == "Play"
    scrub = opened.find("#scrub")
    assert scrub.get_attribute("value") == scrub.get_attribute("max")


@pytest.mark.parametrize("scheme, width", [("light", 390), ("dark", 1200)])
def test_it_fits(opened, emulate, scheme, width):
    """Catches a page that scrolls sideways on a phone, and colours that cannot be read."""
    screen = dict(width=width, height=800, deviceScaleFactor=1, mobile=False)
    opened.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    emulate("prefers-color-scheme", scheme)
    for tab in "attention", "playground", "paths":
        opened.find(f"#tab-{tab}").click()
        assert opened.read("document.documentElement.scrollWidth <= innerWidth")
    rgb = torch.tensor(opened.read("['ink', 'soft', 'paper'].map(n => colour('--' + n))"))
    linear = ((rgb / 255 + 0.055) / 1.055) ** 2.4
    ink, soft, paper = (linear @ torch.tensor([0.2126, 0.7152, 0.0722])).tolist()  # luminance
    for text in ink, soft:
        assert (max(text, paper) + 0.05) / (min(text, paper) + 0.05) >= 4.5
    assert (paper < 0.5) == (scheme == "dark")


MEASURE = """
    const times = {}, $ = (s) => document.querySelector(s);
    const step = (name, act) => {
      const begin = performance.now();
      act();
      document.body.getBoundingClientRect();
      (times[name] ??= []).push(performance.now() - begin);
    };
    const key = (k) => () =>
      $('#tokens').dispatchEvent(new KeyboardEvent('keydown', {key: k, bubbles: true}));
    const choose = (name, value) => () => {
      $(name).value = value;
      $(name).dispatchEvent(new Event('change'));
    };
    for (let n = 0; n < 10; n++) {
      step('click', () => $('#token-' + (511 - 37 * n)).click());
      step('arrow', key('ArrowLeft'));
      step('head', key('ArrowDown'));
      step('layer', key(']'));
      key('Escape')();
      const over = new PointerEvent('pointerover', {bubbles: true, pointerType: 'mouse'});
      step('hover', () => $('#token-' + 40 * n).dispatchEvent(over));
      choose('#layer', -1)();
      step('average over the layers', choose('#head', n));
      step('average over all', choose('#head', -1));
      step('rollout', choose('#head', -2));
      step('direction', () => $(n % 2 ? '[value=back]' : '[value=ahead]').click());
      step('thumbnail', () => document.querySelectorAll('#heads button')[14 * n].click());
    }
    return times;"""


def test_512_tokens_of_12_layers_of_12_heads(chromium, tmp_path):
    """Catches a stutter: no interaction may take 100 ms, layout and style included."""
    model = random_model(block_size=512, n_layer=12, n_head=12, n_embd=48, window=0)
    ids = torch.randint(32, 127, (512,), generator=torch.Generator().manual_seed(0))
    maps = attention_maps(model, ids, attention_weights)
    data = describe(model, tokenizer.create_tokenizer("byte"), ids, *maps)
    path = tmp_path / "large.html"
    path.write_text(page(data | {"model": "large", "note": ""}), encoding="utf-8")
    chromium.get(path.as_uri())
    wait_for_thumbnails(chromium)
    times = chromium.execute_script(MEASURE)
    medians = {name: statistics.median(ms) for name, ms in times.items()}  # other programs run too
    assert len(medians) == 10 and max(medians.values()) < 100, medians
