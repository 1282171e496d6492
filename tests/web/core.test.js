import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, node, texts } from './dom.js';
import { spelled } from '../../assets/web/core/element.js';
import { unpack } from '../../assets/web/core/files.js';
import { recall, remember } from '../../assets/web/core/memory.js';
import { walked } from '../../assets/web/stage/evidence.js';
import { Help } from '../../assets/web/stage/help.js';
import { parts } from '../../assets/web/stage/token.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { MethodHelp } from '../../assets/web/messages.d.ts' */

function keeping(value) {
  Object.assign(globalThis, { localStorage: { getItem: () => value, setItem: (_, text) => { value = text; } } });
  return () => JSON.parse(value);
}

test('what the browser kept is not trusted', () => {
  for (const kept of ['{', '[]', 'null', '{"text": "<b>"}', '{"text": 7, "keys": "no"}']) {
    keeping(kept);
    assert.deepEqual([recall('text', ['rejected', 'final']), recall('keys', [true, false])], ['rejected', true], kept);
  }
});

test('what is remembered is recalled, beside what was remembered before', () => {
  const kept = keeping('{"keys": false}');
  remember('text', 'final');
  assert.deepEqual(kept(), { keys: false, text: 'final' });
  assert.equal(recall('text', ['rejected', 'final']), 'final');
});

test('a browser that keeps nothing is no error', () => {
  Object.assign(globalThis, { localStorage: { getItem() { throw new Error('private'); }, setItem() { throw new Error('private'); } } });
  remember('text', 'final');
  assert.equal(recall('text', ['rejected', 'final']), 'rejected');
});

test('thousands are set apart', () => {
  assert.deepEqual([999, 1234, 1234567].map(spelled), ['999', '1,234', '1,234,567']);
});

test('a packed text comes back as it was', async () => {
  const packed = Buffer.from(await new Response(new Blob(['Füchse ␣ 🦊']).stream().pipeThrough(new CompressionStream('gzip'))).arrayBuffer());
  assert.equal(await unpack(packed.toString('base64')), 'Füchse ␣ 🦊');
});

test('signs for spaces stand apart from the word, unless there is nothing else', () => {
  const space = 'sv-space', word = 'sv-token-word';
  assert.deepEqual(parts('␣fox'), [[space, '␣'], [word, 'fox']]);
  assert.deepEqual(parts('fox␣␣'), [[word, 'fox'], [space, '␣␣']]);
  assert.deepEqual(parts('␣'), [[word, '␣']]);
  assert.deepEqual(parts(''), []);
});

test('the keys walk a tree as any tree, and stay where there is no way', () => {
  const levels = [1, 2, 3, 2, 1];
  const ways = { ArrowDown: [1, 2, 3, 4, 4], ArrowUp: [0, 0, 1, 2, 3], ArrowRight: [1, 2, 2, 3, 4], ArrowLeft: [0, 0, 1, 0, 4], Home: [0, 0, 0, 0, 0], End: [4, 4, 4, 4, 4] };
  for (const [key, expected] of Object.entries(ways)) assert.deepEqual(levels.map((_, at) => walked(levels, at, key)), expected, key);
});

test('the help links to arXiv or nowhere', () => {
  const root = node();
  /** @type {MethodHelp} */
  const help = {
    title: 'A method', summary: 'What it does.', caution: '', lacks: '', notes: ['More.'], rule: { title: 'Greedy', badge: 'lossy', meaning: 'm', summary: 's' },
    sources: [['A paper', 'https://arxiv.org/abs/2211.17192'], ['Bad', 'javascript:alert(1)'], ['Known', null]],
  };
  render(html`<${Help} ...${help} />`, root);
  assert.deepEqual(all(root, 'a').map((link) => link.attributes.href), ['https://arxiv.org/abs/2211.17192']);
  assert.deepEqual(texts(root, '.sv-help-from'), ['A paper · Bad · Known']);
  assert.deepEqual(texts(root, '.sv-help-rule'), ['lossy Greedy. s m']);
});
