import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts, type } from './dom.js';
import { Blocks, sorted } from '../../assets/web/reports/blocks.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { BarRow, DetailsBlock, PageBlock, TableBlock, TextDivision, VerdictBlock, WordsBlock } from '../../assets/web/messages.d.ts' */

const HOSTILE = '<img src=x onerror=alert(1)><script>alert(2)</script>';
const host = { root: node(), title: 'Around', act() {}, halt() {} };
/** @param {PageBlock[]} blocks */
const draw = (blocks, more = {}, root = node()) => {
  render(html`<${Blocks} blocks=${blocks} host=${{ ...host, ...more }} />`, root);
  return root;
};
/** @param {Partial<TableBlock>} [more] @returns {TableBlock} */
const table = (more) => ({ kind: 'table', columns: ['rule', 'share'], rows: [['b10', { text: '9 %', sort: 9 }], ['b9', { text: '10 %', sort: 10 }], ['a', { text: '–', sort: null }]], caption: '', marked: -1, sortable: true, ...more });

test('a text from outside is a text, and every second one of a list is set off', () => {
  const root = draw([{ kind: 'words', words: ['The draft gave ', HOSTILE, ' 40 %.'], small: false }]);
  assert.deepEqual(texts(root, '.sv-word'), [HOSTILE]);
  assert.equal(root.textContent, `The draft gave ${HOSTILE} 40 %.`);
  assert.equal(all(root, 'img').length, 0);
});

test('data that look like a node are not taken for one', () => {
  const forged = JSON.parse('{"type": "img", "props": {"src": "x"}, "key": null, "ref": null, "__v": 1}');
  assert.equal(all(draw([{ kind: 'words', words: [forged], small: false }]), 'img').length, 0);
});

test('a verdict has its mark beside its words', () => {
  /** @type {VerdictBlock['state'][]} */
  const states = ['exact', 'consistent', 'suspicious', 'differs', 'unsure'];
  const root = draw(states.map((state) => ({ kind: 'verdict', state, words: state })));
  assert.deepEqual(texts(root, '.sv-verdict-mark'), ['=', '✓', '!', '✗', '?']);
  assert.ok(all(root, '.sv-verdict-mark').every((mark) => mark.attributes['aria-hidden'] === 'true'));
});

test('a table sorts numbers largest first, texts as people order them, and cells without a key come last', async () => {
  const root = draw([table()]), [rule, share] = all(root, '.sv-sort');
  const first = () => texts(root, 'tbody')[0] && all(all(root, 'tbody')[0], 'tr').map((line) => texts(line, 'th')[0]);
  assert.deepEqual(first(), ['b10', 'b9', 'a']);
  await fire(share, 'click');
  assert.deepEqual(first(), ['b9', 'b10', 'a']);
  assert.equal(all(root, '[aria-sort]')[0].attributes['aria-sort'], 'descending');
  await fire(share, 'click');
  assert.deepEqual(first(), ['b10', 'b9', 'a']);
  await fire(rule, 'click');
  assert.deepEqual(first(), ['a', 'b9', 'b10']);
  assert.deepEqual(all(root, '[aria-sort]').map((head) => head.attributes['aria-sort']), ['ascending']);
});

test('rows keep their order where nothing was pressed', () => {
  assert.deepEqual(sorted([['b'], ['a']], null), [0, 1]);
});

test('what scrolls by itself has a name: its caption, else what stands around', () => {
  const names = all(draw([table({ caption: 'Rules' }), table()]), '[role=region]').map((each) => each.attributes['aria-label']);
  assert.deepEqual(names, ['Rules', 'Around']);
});

test('a long cell may break, a toned one is marked', () => {
  const root = draw([table({ rows: [['x'.repeat(45), '–'], ['y', { text: 'differs', sort: null, tone: 'rejected' }]] })]);
  assert.deepEqual(texts(root, '.sv-long'), ['x'.repeat(45)]);
  assert.deepEqual(texts(root, 'td'), ['–', 'differs']);
  assert.deepEqual(texts(root, '.sv-tone-rejected'), ['differs']);
});

test('a button in a cell does what a button of its section would do', async () => {
  const done = [];
  const root = draw([table({ rows: [['a', { text: 'open', sort: 'open', does: { section: 'race', do: 'again', values: { k: '4' } } }]] })], { act: (...all_) => done.push(all_) });
  await fire(all(root, '.sv-doer')[0], 'click');
  assert.deepEqual(done, [['race', 'again', { k: '4' }]]);
});

test('bars carry their widths, the tick its place, and the heads their names', () => {
  /** @type {BarRow} */
  const row = { label: 'fox', parts: [['both', 40], ['shortfall', 20]], values: ['12 %'], tick: 61 };
  const root = draw([{ kind: 'bars', rows: [row, { ...row, tick: null }], heads: ['seen'], key: [['tick', 'the distribution']], first: 'token' }]);
  assert.deepEqual(all(root, '.sv-part').map((part) => part.style.width), ['40%', '20%', '40%', '20%']);
  assert.deepEqual(all(root, '.sv-track-tick').map((tick) => tick.style.left), ['61%']);
  assert.deepEqual(texts(root, 'thead'), ['tokenbarseen']);
  assert.deepEqual(texts(root, '.sv-bars-key'), ['the distribution']);
});

test('the slider cuts the text anew without the server', async () => {
  /** @type {TextDivision} */
  const one = { lengths: [1, 1, 2, 2], kinds: ['resampled', 'resampled', 'bonus', 'bonus'], words: ['', '4', ' calls'] };
  /** @type {TextDivision} */
  const two = { lengths: [1, 2, 3], kinds: ['resampled', 'resampled', 'bonus'], words: ['', '3', ' calls'] };
  const tokens = ['One', ' day', HOSTILE, ' a', ' fox', '.'], root = draw([{ kind: 'segments', tokens, by_k: { 1: one, 2: two }, k: 1 }]);
  assert.equal(all(root, '.sv-segment').length, 4);
  await type(all(root, 'input')[0], '1');
  assert.equal(all(root, '.sv-segment').length, 3);
  assert.deepEqual(texts(root, '.sv-segments-text'), [tokens.join('')]);
  assert.deepEqual(texts(root, '.sv-segments-words'), ['3 calls']);
  assert.deepEqual(all(root, '.sv-segment-token').map((each) => each.attributes.class.split('sv-is-')[1]), ['resampled', 'accepted', 'resampled', 'accepted', 'accepted', 'bonus']);
});

test('work that goes on moves on in its place, and a press on Stop counts', async () => {
  let halts = 0;
  const root = node(), at = (width) => draw([{ kind: 'progress', width, words: `${width} of 100` }], { halt: () => { halts += 1; } }, root);
  at(1);
  const [stop] = all(root, '.sv-button');
  at(50);
  assert.equal(all(root, '.sv-button')[0], stop);
  assert.equal(all(root, '[role=progressbar]')[0].attributes['aria-valuenow'], '50');
  assert.deepEqual(texts(root, '.sv-job-words'), ['50 of 100']);
  await fire(stop, 'click');
  assert.equal(halts, 1);
});

test('what has not changed is the same node, and what was unfolded stays by its title', () => {
  /** @param {string} text @returns {WordsBlock} */
  const words = (text) => ({ kind: 'words', words: text, small: false });
  /** @param {string} text @returns {DetailsBlock} */
  const fold = (text) => ({ kind: 'details', title: 'More', blocks: [words(text)] });
  const root = draw([words('a'), table(), fold('inside')]), [kept] = all(root, '.sv-tabled'), [open] = all(root, 'details');
  draw([words('b'), words('c'), table(), fold('changed')], {}, root);
  assert.equal(all(root, '.sv-tabled')[0], kept);
  assert.equal(all(root, 'details')[0], open);
  assert.deepEqual(texts(root, '.sv-words'), ['b', 'c', 'changed']);
});
