// A model of conversations (ChatML) takes turns: what is said is added to the text, and answered.
"use strict";
if (data.live?.tokenizer.special?.["<|im_end|>"] !== undefined) {
  const form = $("#chat"), field = $("#chat input");

  function paint() {
    const turns = view.live.state.text.split("<|im_start|>").slice(1).map((turn) =>
      turn.match(/^(\w*)\n?([^]*?)(<\|im_end\|>|$)/));
    $("#turns").replaceChildren(...turns.map(([, role, said]) =>
      make("p", { class: role }, make("small", {}, role), said)));
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = `<|im_start|>user\n${field.value}<|im_end|>\n<|im_start|>assistant\n`;
    view.live.write(view.live.state.text + said, data.live.tokenizer.special["<|im_end|>"]);
    field.value = "";
  });
  addEventListener("chosen", paint);
  form.hidden = false;
  $("#heat").value = 0.1; // nearly always the likeliest answer
  $("#heat").dispatchEvent(new Event("input"));
}
