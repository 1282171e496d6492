import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts } from './dom.js';
import { Contents, Section } from '../../assets/web/reports/report.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { ChoiceControl, PageControl, PageSection, WordsBlock } from '../../assets/web/messages.d.ts' */

/** @param {string} value @returns {ChoiceControl} */
const choice = (value, options = ['right', 'wrong']) => ({ kind: 'choice', name: 'rule', label: 'Rule', options: options.map((each) => [each, each]), value });
/** @param {string} text @returns {WordsBlock} */
const words = (text) => ({ kind: 'words', words: text, small: false });
/** @type {PageSection} */
const base = { id: 'all', title: 'Everything', lead: ['Kept with ', '63 %'], controls: [choice('right')], options: [], takes: '', blocks: [words('first')] };
/** @param {Partial<PageSection>} changes */
const draw = (changes = {}, root = node()) => {
  render(html`<${Section} ...${base} ...${changes} host=${{ act() {}, halt() {} }} />`, root);
  return root;
};

test('a section has its title, its lead and its blocks, and hides what it does not have', () => {
  const root = draw({ lead: [], controls: [] });
  assert.deepEqual(texts(root, 'h2'), ['Everything']);
  assert.deepEqual(texts(root, '.sv-words'), ['first']);
  assert.deepEqual(['.sv-section-lead', '.sv-controls'].map((each) => all(root, each)[0].hidden), [true, true]);
  assert.equal(all(root, '.sv-section')[0].attributes['data-section'], 'all');
});

test('a list of contents leads to each section by an address of its own', () => {
  const root = node();
  render(html`<${Contents} page="compare" sections=${[{ id: 'race', title: 'A race' }, { id: 'why-slow', title: 'Why <b>slow</b>?' }]} />`, root);
  assert.deepEqual(all(root, 'a').map((each) => [each.attributes.href || each.href, each.textContent]), [['#compare/race', 'A race'], ['#compare/why-slow', 'Why <b>slow</b>?']]);
});

test('a field keeps what was set while other things change', () => {
  const root = draw(), [box] = all(root, 'select');
  assert.equal(box.value, 'right');
  box.value = 'wrong';
  draw({ blocks: [words('second')], controls: [choice('right', ['other', 'right', 'wrong'])] }, root);
  assert.deepEqual([all(root, 'select')[0] === box, box.value], [true, 'wrong']);
});

test('a field whose own value has changed shows it', () => {
  const root = draw(), [box] = all(root, 'select');
  box.value = 'wrong';
  draw({ controls: [choice('other', ['other', 'wrong'])] }, root);
  assert.equal(box.value, 'other');
});

test('a field whose choice is gone shows what it was given', () => {
  const root = draw(), [box] = all(root, 'select');
  box.value = 'wrong';
  draw({ controls: [choice('right', ['other', 'right'])] }, root);
  assert.equal(box.value, 'right');
});

test('a number keeps what was set as a text', () => {
  /** @param {number} high @returns {Partial<PageSection>} */
  const count = (high) => ({ controls: [{ kind: 'count', name: 'n', label: 'Redraws', value: 5000, low: 100, high }] });
  const root = draw(count(20000)), [box] = all(root, 'input');
  assert.equal(box.value, '5000');
  box.value = '700';
  draw(count(9000), root);
  assert.equal(box.value, '700');
});

test('controls that come and go leave the others in their place', () => {
  /** @param {string} label @returns {PageControl} */
  const button = (label) => ({ kind: 'button', do: label, label, primary: false, free: false });
  const root = draw({ controls: [choice('right'), button('a')] }), [box] = all(root, 'select');
  draw({ controls: [button('b'), choice('right'), button('a')] }, root);
  assert.deepEqual(texts(root, '.sv-button'), ['b', 'a']);
  assert.equal(all(root, 'select')[0], box);
});

test('a button sends what is set, and nothing where a number is out of its bounds', async () => {
  const sent = [], root = node();
  /** @type {PageControl[]} */
  const controls = [choice('right'), { kind: 'count', name: 'n', label: 'Redraws', value: 5000, low: 100, high: 20000 }, { kind: 'button', do: 'redraw', label: 'Redraw', primary: true, free: false }];
  render(html`<${Section} ...${base} controls=${controls} host=${{ act: (...all_) => sent.push(all_) }} />`, root);
  const [rule] = all(root, 'select'), [count] = all(root, 'input'), press = () => fire(all(root, '[data-act=redraw]')[0], 'click');
  rule.value = 'wrong';
  for (const set of ['7', '20001', '700']) {
    count.value = set;
    await press();
  }
  assert.deepEqual(sent, [['all', 'redraw', { rule: 'wrong', n: '700' }, false]]);
});

test('fields behind the fold are sent with those in sight, and one that is out of its bounds opens it', async () => {
  const sent = [], root = node();
  /** @type {Partial<PageSection>} */
  const form = { controls: [choice('right'), { kind: 'button', do: 'redraw', label: 'Redraw', primary: true, free: false }], options: [{ kind: 'count', name: 'n', label: 'Redraws', value: 5000, low: 100, high: 20000 }] };
  render(html`<${Section} ...${base} ...${form} host=${{ act: (...all_) => sent.push(all_) }} />`, root);
  const [fold] = all(root, 'details'), [count] = all(root, 'details input'), press = () => fire(all(root, '[data-act=redraw]')[0], 'click');
  assert.deepEqual(texts(root, 'summary'), ['Options']);
  count.value = '7';
  await press();
  assert.deepEqual([sent, fold.open], [[], true]);
  count.value = '700';
  await press();
  assert.deepEqual(sent, [['all', 'redraw', { rule: 'right', n: '700' }, false]]);
});

test('an example stands above the controls, what was found below them, and a button names the sentence that says why it waits', () => {
  const root = draw({
    controls: [{ kind: 'button', do: 'go', label: 'Go', primary: true, free: false }], takes: 'It took 3 s the last time on this machine.',
    blocks: [words('not yet'), { kind: 'example', source: ['Example, from ', 'a run', '.'], blocks: [words('shown')] }],
  });
  assert.deepEqual(all(root, '.sv-section')[0].children.map((each) => each.textContent.trim()), [
    'Everything', 'Kept with 63 %', 'Example, from a run.shown', 'GoIt took 3 s the last time on this machine.', 'not yet',
  ]);
  assert.equal(all(root, '.sv-button')[0].attributes['aria-describedby'], all(root, '.sv-why')[0].id || all(root, '.sv-why')[0].attributes.id);
});
