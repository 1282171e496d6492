// What is drawn goes on to be right while a browser's translator takes its texts away; what it must not change is marked.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { all, node } from './dom.js';

const { sentence, VERBATIM, verbatim, worded } = await import('../../assets/web/core/element.js');
const { html } = await import('../../assets/web/core/html.js');
const { tokenLabel, Token } = await import('../../assets/web/stage/token.js');
const { render } = await import('../../assets/web/vendor/preact_htm.js');

// as browsers do it: each text that is no mere space goes into an element of the translator's own
function translate(root) {
  for (const child of [...root.childNodes]) {
    if (child.localName) {
      if (child.localName !== 'font' && child.translate) translate(child);
    } else if (child.data.trim()) {
      const made = node('font');
      made.append(child.data.toUpperCase());
      child.before(made);
      child.remove();
    }
  }
}

const isOn = (each) => Boolean(each);
const SHAPES = {
  'a text alone': (words) => html`<p>${words[0]}</p>`,
  'texts side by side': (words) => html`<p>${words[0]} and ${words.length} more</p>`,
  'texts among elements': (words) => html`<p>so ${words[0]} <b>is</b> ${words.length} times ${isOn(words[1]) && html`<i>${words[1]}</i>`} there</p>`,
  'elements in a list': (words) => html`<ul>${words.map((word) => html`<li>${word}</li>`)}</ul>`,
  'a sentence': (words) => html`<p>${worded(words)}</p>`,
  'a text or an element': (words) => html`<p>${words.length > 1 ? html`<b>${words[0]}</b>` : words[0]}</p>`,
  'several roots': (words) => html`<b>${words[0]}</b> or ${words.length} ${words}`,
  'a component': (words) => html`<${({ children }) => html`<div>${children}</div>`}>${words[0]} <u>${words.length}</u><//>`,
};

for (const [name, draw] of Object.entries(SHAPES)) {
  test(`${name}: a page that is translated says the same as another`, () => {
    const plain = node(), translated = node();
    for (const words of [['one'], ['two', 'three'], ['two', 'four', 'five'], ['six'], ['six'], ['seven', 'eight']]) {
      for (const host of [plain, translated]) render(draw(words), host);
      translate(translated);
      assert.equal(translated.textContent.toLowerCase(), plain.textContent);
      assert.ok(plain.textContent.includes(words[0]));
    }
  });
}

test('an empty text leaves its element empty', () => {
  const host = node();
  for (const words of ['', 'one', '']) {
    render(html`<p>${words}</p>`, host);
    assert.equal(all(host, 'p')[0].childNodes.length, words ? 1 : 0);
  }
});

test('tokens, and what a sentence sets off, are not translated', () => {
  const host = node();
  render(html`<p>${worded(['the ', 'fox', ' ran'])}</p><${Token} className="drawn" text="␣fox" />`, host);
  const said = node();
  sentence(said, ['the ', 'fox', ' ran']);
  host.append(said, tokenLabel('made', '␣fox'), verbatim('code', '', 'fox'));
  translate(host);
  assert.equal(VERBATIM.translate, false);
  assert.equal(host.textContent.match(/fox/g).length, 5);
  assert.equal(host.textContent.match(/THE/g).length, 2);
});
