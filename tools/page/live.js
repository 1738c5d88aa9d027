// The live page: type, choose what comes next, switch parts of the model off. view.live is what an
// address can ask of it.
"use strict";
if (data.live) {
  const gpt = new GPT(data.live), tokenizer = new Tokenizer(data.live.tokenizer);
  const box = $("#text"), note = $("#note"), verdict = $("#verdict");
  let ids = data.ids; // of the whole text
  let changes = {}; // as in GPT.read
  let past, changedPast; // what the model has read last, intact and with the changes

  const { begin } = data.live.tokenizer;
  const written = () => ids.slice(begin.length);
  const heat = $("#heat"), topK = $("#top-k");
  const sampling = () => ({ temperature: Number(heat.value), topK: Number(topK.value) });
  const context = () => ids.slice(gpt.contextStart(ids.length));
  const reads = (result, intact) => readingOfModel(gpt, tokenizer, result, sampling, intact);

  // ---- What is shown follows the text and the changes.

  function update(choice) {
    if (!ids.length) return say("Type something.");
    const now = context();
    past = gpt.read(now, {}, past);
    let reading = reads(past);
    if (Object.keys(changes).length) {
      changedPast = gpt.read(now, changes, changedPast);
      reading = reads(changedPast, reading);
    }
    view.open(reading, choice ?? { held: false });
    const cut = `The last ${now.length} of ${ids.length} tokens: the context has room for `;
    say(now.length < ids.length ? cut + gpt.config.block_size : "");
    paintVerdict();
    paintParts();
  }

  function say(text, wrong = false) {
    note.textContent = text;
    box.setAttribute("aria-invalid", wrong);
  }

  function setText(text, choice) {
    try {
      ids = [...begin, ...tokenizer.encode(text)];
    } catch (error) {
      return say(error.message, true);
    }
    forget();
    update(choice);
  }

  // The text goes on with a token after the chosen one, or after the last.
  function append(id, token = view.state.token) {
    const first = gpt.contextStart(ids.length);
    ids = [...ids.slice(0, first + token + 1), id];
    box.value = tokenizer.decode(written());
    box.scrollTop = box.scrollHeight;
    forget();
    update();
  }

  box.addEventListener("input", () => setText(box.value));
  $("#next").addEventListener("click", (event) => {
    const row = event.target.closest("[data-id]");
    if (!row) return;
    append(Number(row.dataset.id));
    $("#next button")?.focus();
  });
  for (const slider of [heat, topK])
    slider.addEventListener("input", () => {
      $("#heat-value").textContent = Number(heat.value).toFixed(1);
      $("#top-k-value").textContent = Number(topK.value) || "all";
      view.paintNext();
      view.select({});
    });

  // ---- Writing

  const write = $("#write");
  let left = 0; // tokens to write

  function draw(probabilities) {
    let rest = Math.random() * sum(probabilities);
    return Math.max(0, probabilities.findIndex((p) => (rest -= p) < 0));
  }

  function writeOne() {
    write.textContent = left ? "Stop" : "Write 50 tokens";
    $("#sentence").setAttribute("aria-live", left ? "off" : "polite"); // not at each token
    if (!left) return;
    left -= 1;
    const last = view.reading.ids.length - 1;
    append(draw(view.reading.probabilities(last).subarray(0, tokenizer.tokens.length)), last);
    requestAnimationFrame(writeOne);
  }

  write.addEventListener("click", () => {
    const writing = left > 0;
    left = writing ? 0 : 50;
    if (!writing) writeOne();
  });

  // ---- Taking apart

  const named = (key) => {
    const [layer, part] = key.split(".");
    return `layer ${Number(layer) + 1}, ${part === "mlp" ? "MLP" : `head ${Number(part) + 1}`}`;
  };
  const chosen = () => `${view.state.layer}.${view.state.head}`;
  const SAYS = { off: "off", uniform: "uniform", previous: "on the previous token" };
  const nats = (loss) => `${loss.toFixed(3)} nats a token`;

  function alter(more) {
    changes = { ...changes, ...more };
    for (const [key, how] of Object.entries(changes)) if (!how) delete changes[key];
    update({ token: view.state.token });
  }

  function paintVerdict() {
    const { loss, intact } = view.reading;
    const parts = Object.entries(changes).map(([key, how]) => `${named(key)} ${SAYS[how]}`);
    verdict.textContent = intact
      ? `With ${parts.join("; ")}, the loss of this text is ${nats(loss)}; ` +
        `of the intact model ${intact.loss.toFixed(3)}.`
      : `The loss of this text is ${nats(loss)}.`;
    $("#reset").disabled = !intact;
    Object.assign(verdict.dataset, { loss, intact: intact?.loss ?? loss });
  }

  // A switch of a head or an MLP.
  function makeSwitch(key, ...children) {
    const button = make("button", { role: "switch", "data-part": key, "aria-label": named(key) },
      ...children);
    button.addEventListener("click", () => alter({ [key]: changes[key] ? "" : "off" }));
    return button;
  }

  function paintParts() {
    for (const button of document.querySelectorAll("[data-part]")) {
      const how = changes[button.dataset.part];
      button.setAttribute("aria-checked", how !== "off");
      button.parentElement.dataset.change = how ?? "";
      button.title = how ? `${SAYS[how]}: click for as trained` : "Switch it off";
    }
    $("#change").value = changes[chosen()] ?? "";
    $("#change").disabled = chosen().includes("-"); // not one head
  }

  for (const cell of document.querySelectorAll("[data-head]"))
    cell.append(makeSwitch(cell.dataset.head), make("small", { class: "hurt" }));
  for (const side of document.querySelectorAll("[data-layer]"))
    side.append(makeSwitch(`${side.dataset.layer}.mlp`, "MLP"));
  $("#change").addEventListener("change", () => alter({ [chosen()]: $("#change").value }));
  $("#reset").addEventListener("click", () => {
    changes = {};
    update({ token: view.state.token });
  });
  view.listeners.push(paintParts);

  // ---- The head that matters: each is switched off, by itself, and the loss of the text measured.

  const cells = [...document.querySelectorAll("[data-head]")];

  function forget() {
    for (const cell of cells) {
      cell.classList.remove("matters");
      cell.querySelector(".hurt").textContent = "";
    }
  }

  async function find() {
    const now = context(), asked = ids, before = reads(past).loss;
    const losses = [];
    for (const cell of cells) {
      losses.push(reads(gpt.read(now, { [cell.dataset.head]: "off" })).loss);
      await new Promise((done) => setTimeout(done)); // the page stays alive
      if (asked !== ids) return; // another text
    }
    cells.forEach((cell, n) => {
      const more = losses[n] - before;
      const shown = `${more < 0 ? "−" : "+"}${Math.abs(more).toFixed(3)}`;
      cell.querySelector(".hurt").textContent = `${shown} nats if off`;
    });
    const n = losses.indexOf(Math.max(...losses));
    cells[n].classList.toggle("matters", losses[n] > before);
    const [layer, head] = cells[n].dataset.head.split(".").map(Number);
    view.select({ layer, head });
    verdict.textContent = losses[n] > before
      ? `Most matters ${named(cells[n].dataset.head)}: without it, the loss of this text rises ` +
        `from ${before.toFixed(3)} to ${nats(losses[n])}.`
      : "This text needs none of the heads: without any one, its loss does not rise.";
  }
  $("#find").addEventListener("click", find);

  // ---- Begin
  for (const part of document.querySelectorAll(".live")) part.hidden = false;
  topK.max = Math.min(50, tokenizer.tokens.length);
  const examples = $("#examples");
  for (const text of data.examples) examples.append(make("option", {}, text));
  examples.parentElement.hidden = !data.examples.length;
  examples.addEventListener("change", () => {
    if (examples.value) setText((box.value = examples.value));
    examples.value = "";
  });
  box.value = tokenizer.decode(written());
  past = gpt.read(context());
  update(view.clearest(reads(past)));
  view.live = {
    get state() { return { text: box.value, changes }; },
    open(text, asked, choice) {
      changes = asked;
      box.value = text ?? box.value;
      setText(box.value, choice);
    },
  };
} else {
  const reading = readingOfData();
  view.open(reading, view.clearest(reading));
}
